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
	// urlDefault asks whether JetStream serves and all of its streams and consumers that are here have caught up: only then may
	// another server of three be stopped. One that has come back an instant ago serves already, and has not: a consumer that is
	// kept in memory is empty, and an empty one's vote does not count (nats-server 2.15.2).
	urlDefault = "http://127.0.0.1:8222/healthz"
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
