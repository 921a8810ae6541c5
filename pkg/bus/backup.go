package bus

import "time"

// Copied is one stream of a backup, as it was written or stored again.
type Copied struct {
	Stream   string `json:"stream"`
	Messages uint64 `json:"messages"`
	LastSeq  uint64 `json:"lastSequence"` // of the stream; the next message has the one after it
	Bytes    int64  `json:"bytes"`        // of the backup's file
}

// Backup is what a backup says of itself.
type Backup struct {
	// TakenAt is when the copying of the log began, by the server's clock: what was accepted until then is in it.
	TakenAt    time.Time `json:"takenAt"`
	Partitions int       `json:"partitions"`
	Streams    []Copied  `json:"streams"`
}

// Restored is what was made of a backup.
type Restored struct {
	Backup
	// HandedOut is how much work was out when the backup was taken: it waits for workers again.
	HandedOut int `json:"handedOut"`
	// Unread are resources whose state this version cannot read; a sweep finds what they had out.
	Unread int `json:"unread"`
}
