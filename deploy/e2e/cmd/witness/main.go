// Command witness is the script of the tests' phases: it writes down when it was begun and when it ended, and answers
// with the fence that it ran under.
//
//	witness -journal FILE [-hold 20ms] [-pending 2] [-fail-first]
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/droverproject/drover/deploy/e2e/internal/journal"
)

// Exit statuses, as a phase with executor script reads them.
const (
	exitBroken    = 1
	exitRetryable = 9
	exitPending   = 75
)

func main() {
	file := flag.String("journal", "", "`file` to which a line is appended at the begin and at the end")
	hold := flag.Duration("hold", 0, "how long to take")
	pending := flag.Int("pending", 0, "`number` of calls of an attempt that are not done yet")
	failFirst := flag.Bool("fail-first", false, "fail the first attempt of a resource, in a way that may pass")
	flag.Parse()
	code, err := run(*file, *hold, *pending, *failFirst)
	if err != nil {
		fmt.Fprintln(os.Stderr, "witness:", err)
	}
	os.Exit(code)
}

func run(file string, hold time.Duration, pending int, failFirst bool) (int, error) {
	attempt, err := strconv.ParseUint(os.Getenv("DROVER_ATTEMPT"), 10, 32)
	if err != nil {
		return exitBroken, fmt.Errorf("attempt: %w", err)
	}
	ran := journal.Ran{
		UID: os.Getenv("DROVER_UID"), Job: os.Getenv("DROVER_JOB"), Phase: os.Getenv("DROVER_PHASE"), Attempt: uint32(attempt),
	}
	var data struct{ Calls int }
	if text := os.Getenv("DROVER_DATA"); text != "" {
		if err := json.Unmarshal([]byte(text), &data); err != nil {
			return exitBroken, fmt.Errorf("data: %w", err)
		}
	}
	if err := journal.Append(file, journal.Line{At: time.Now(), Begin: true, Parent: os.Getppid(), Ran: ran}); err != nil {
		return exitBroken, err
	}
	time.Sleep(hold)
	if err := journal.Append(file, journal.Line{At: time.Now(), Ran: ran}); err != nil {
		return exitBroken, err
	}
	if failFirst && attempt == 1 {
		return exitRetryable, nil
	}
	answer := map[string]any{"outputs": map[string]any{"ran": ran}, "data": map[string]any{"Calls": data.Calls + 1}}
	body, err := json.Marshal(answer)
	if err != nil {
		return exitBroken, err
	}
	if err := os.WriteFile(os.Getenv("DROVER_RESULT"), body, 0o600); err != nil {
		return exitBroken, err
	}
	if data.Calls < pending {
		return exitPending, nil
	}
	return 0, nil
}
