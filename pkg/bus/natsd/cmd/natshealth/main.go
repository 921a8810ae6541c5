// Command natshealth asks a NATS server whether it is healthy, by its monitoring address, and exits with 0 if it is. It is
// the health command of an image that holds nothing but a server.
//
//	natshealth [URL]
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const (
	// urlDefault asks whether JetStream serves, not whether each stream has caught up: a server that has just come back is
	// in service before that, and the streams of a cluster are made only when all of its servers are healthy.
	urlDefault = "http://127.0.0.1:8222/healthz?js-server-only=true"
	timeout    = 3 * time.Second
	bytesMax   = 4 << 10 // of an answer that is shown
)

func main() {
	url := urlDefault
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	if err := ask(url); err != nil {
		fmt.Fprintln(os.Stderr, "natshealth:", err)
		os.Exit(1)
	}
}

func ask(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // without a proxy: it asks its own machine
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(response.Body, bytesMax))
		if err != nil {
			return err
		}
		return fmt.Errorf("%s: %s", response.Status, body)
	}
	return nil
}
