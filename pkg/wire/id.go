package wire

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"
)

// JobID is the id of the job that a request makes: the same request, the same id. 26 characters of [a-z2-7].
func JobID(key resource.Key, requestID string) string {
	return idOf([]string{"job", key.Project, key.Kind, key.Name, requestID})
}

// UID is the uid of the resource that a request creates at a time of the server. The time keeps apart two lives of one
// name that the same request id began. 26 characters of [a-z2-7].
func UID(key resource.Key, requestID string, at time.Time) string {
	nanos := strconv.FormatInt(at.Unix(), 10) + "." + strconv.Itoa(at.Nanosecond())
	return idOf([]string{"uid", key.Project, key.Kind, key.Name, requestID, nanos})
}

var lowerBase32 = base32.NewEncoding(strings.ToLower("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")).WithPadding(base32.NoPadding)

func idOf(parts []string) string {
	sum := sumOf(parts)
	return lowerBase32.EncodeToString(sum[:])
}

func hexOf(parts []string) string {
	sum := sumOf(parts)
	return hex.EncodeToString(sum[:])
}

// sumOf is the first 16 bytes of SHA-256 over the parts, each after its length, so that no two lists of parts collide
// by where they are cut.
func sumOf(parts []string) (sum [16]byte) {
	size := 0
	for _, p := range parts {
		size += len(p) + binary.MaxVarintLen64
	}
	b := make([]byte, 0, size)
	for _, p := range parts {
		b = binary.AppendUvarint(b, uint64(len(p)))
		b = append(b, p...)
	}
	full := sha256.Sum256(b)
	copy(sum[:], full[:])
	return sum
}

// RoutedUUID is an id for those whose clients want a UUID (RFC 4122, version 4 in form): its first 16 bits are the partition
// of the tree that it belongs to, so that who holds nothing but the id finds the owner without a look-up (RoutedPartition);
// the rest is a digest of the parts: the same parts, the same id. A partition is at most 65,535.
func RoutedUUID(partition int, parts ...string) string {
	sum := sumOf(append([]string{"uuid"}, parts...))
	binary.BigEndian.PutUint16(sum[:2], uint16(partition))
	sum[6] = sum[6]&0x0f | 0x40
	sum[8] = sum[8]&0x3f | 0x80
	text := hex.EncodeToString(sum[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

// RoutedPartition is the partition that an id of RoutedUUID names; false where it is none, or not one of n partitions. Ids
// come from outside: that an id has the form does not say that there is such a thing.
func RoutedPartition(id string, n int) (partition int, ok bool) {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' || id[14] != '4' {
		return 0, false
	}
	digits := id[:8] + id[9:13] + id[14:18] + id[19:23] + id[24:]
	b, err := hex.DecodeString(digits)
	if err != nil || strings.ToLower(id) != id || b[8]&0xc0 != 0x80 {
		return 0, false
	}
	partition = int(binary.BigEndian.Uint16(b[:2]))
	return partition, partition < n
}
