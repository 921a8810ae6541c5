package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// healthcheckTimeout is longer than the checks of /readyz may take, and shorter than what supervisors allow.
const healthcheckTimeout = CheckTimeout + 2*time.Second

// answerBytesMax bounds what is read of an answer.
const answerBytesMax = 64 << 10

// Healthcheck asks the process that listens at an address of Config.Listen whether it is ready. An address of all
// interfaces is asked on loopback. The error is what /readyz says, or why it was not asked. It is for images that hold
// nothing but one program, where no other could ask.
func Healthcheck(ctx context.Context, listen string) error {
	hostname, port, err := net.SplitHostPort(listen)
	if err != nil || port == "0" || port == "" {
		return fmt.Errorf("--healthcheck: --listen %q is no address with a fixed port, so nobody knows where to ask", listen)
	}
	if ip := net.ParseIP(hostname); hostname == "" || ip != nil && ip.IsUnspecified() {
		hostname = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			hostname = "::1"
		}
	}
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(hostname, port)+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("--healthcheck: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // without a proxy: it asks itself
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("--healthcheck: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	if err != nil {
		return fmt.Errorf("--healthcheck: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(body)))
	}
	return nil
}
