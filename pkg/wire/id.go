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
