package wire

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/droverproject/drover/pkg/engine/resource"
)

// TestNumbersLead: an id leads to its partition, is exact in JSON, and is another one for another attempt.
func TestNumbersLead(t *testing.T) {
	t.Parallel()
	seen := map[uint64]bool{}
	for partition := range 1 << numberPartitionBits {
		f := resource.Fence{UID: "u", JobID: "j", Phase: "p", Attempt: 1}
		ids := []uint64{PhaseInstanceID(partition, f), ServiceInstanceID(partition, "u")}
		for _, other := range []resource.Fence{
			{UID: "v", JobID: "j", Phase: "p", Attempt: 1}, {UID: "u", JobID: "k", Phase: "p", Attempt: 1},
			{UID: "u", JobID: "j", Phase: "q", Attempt: 1}, {UID: "u", JobID: "j", Phase: "p", Attempt: 2},
		} {
			ids = append(ids, PhaseInstanceID(partition, other))
			require.NotEqual(t, TransactionID(partition, f), TransactionID(partition, other))
		}
		call := f
		call.Call = 7
		require.Equal(t, ids[0], PhaseInstanceID(partition, call), "the calls of an attempt are one piece of work")
		for _, id := range ids {
			require.False(t, seen[id])
			seen[id] = true
			require.Less(t, id, uint64(1)<<53)
			require.Equal(t, id, uint64(float64(id)))
			got, ok := NumberPartition(id, 1<<numberPartitionBits)
			require.True(t, ok)
			require.Equal(t, partition, got)
			_, ok = NumberPartition(id, partition)
			require.False(t, ok, "not one of so few partitions")
		}
	}
	for _, id := range []uint64{0, 1 << 53, math.MaxUint64} {
		_, ok := NumberPartition(id, 1<<16)
		require.False(t, ok, id)
	}
}

func TestCallbacksSurvive(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := Callback{
			PhaseInstance: rapid.Uint64Min(1).Draw(t, "id"), Status: rapid.SampledFrom([]string{"DE", "RE", "ER"}).Draw(t, "status"),
			Transaction: rapid.StringN(0, 36, 64).Draw(t, "transaction"), Message: rapid.StringN(0, 100, CallbackMessageBytesMax).Draw(t, "message"),
		}
		if rapid.Bool().Draw(t, "data") {
			c.Attributes = map[string]string{"callback_data": `{"a":[1,"b",null]}`}
			if rapid.Bool().Draw(t, "service") {
				c.PhaseInstance, c.ServiceInstance, c.Status = 0, c.PhaseInstance, ""
			}
		}
		roundTrip(t, c, EncodeCallback, DecodeCallback)
	})
	for what, c := range map[string]Callback{
		"no id":     {Status: "DE"},
		"two ids":   {PhaseInstance: 1, ServiceInstance: 1, Status: "DE"},
		"no word":   {PhaseInstance: 1},
		"other":     {PhaseInstance: 1, Status: "OR"},
		"of all":    {ServiceInstance: 1, Status: "DE"},
		"long":      {PhaseInstance: 1, Status: "ER", Message: strings.Repeat("x", CallbackMessageBytesMax+1)},
		"large":     {ServiceInstance: 1, Attributes: map[string]string{"a": `"` + strings.Repeat("x", CallbackDataBytesMax) + `"`}},
		"not JSON":  {ServiceInstance: 1, Attributes: map[string]string{"a": "{"}},
		"two of it": {ServiceInstance: 1, Attributes: map[string]string{"a": "1 2"}},
	} {
		_, err := EncodeCallback(c)
		require.Error(t, err, what)
	}
}

func FuzzDecodeCallback(f *testing.F) {
	for _, c := range []Callback{
		{PhaseInstance: 1 << 43, Status: "DE", Transaction: "t"}, {ServiceInstance: 7, Attributes: map[string]string{"callback_data": "{}"}},
	} {
		body, err := EncodeCallback(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := DecodeCallback(body)
		if err != nil {
			return
		}
		again, err := EncodeCallback(c)
		require.NoError(t, err)
		back, err := DecodeCallback(again)
		require.NoError(t, err)
		require.Equal(t, c, back)
	})
}
