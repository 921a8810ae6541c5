// Package webhook makes one HTTP call to an address that a user chose.
//
// # What it does not do for a stranger
//
// It follows no redirect and uses no proxy, so that headers reach only the host that was named. It does not connect to
// link-local addresses (where clouds keep the credentials of machines), to multicast or to the unspecified address,
// whatever a name resolves to. It reads no more than a little of the answer. Errors never hold the URL, a header or the
// body: a URL may carry a token.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/droverproject/drover/pkg/listener"
)

// Limits of one call.
const (
	CallTimeout      = 10 * time.Second // from the dial to the answer
	answerBytesMax   = 4 << 10          // bytes of the answer that are read
	secretBytesMax   = 4 << 10          // bytes of a secret
	connsPerHostMax  = 8
	idleConnsMax     = 64
	idleConnsTimeout = 30 * time.Second
)

// Errors that callers tell apart, with errors.Is. Every other error may pass by itself.
var (
	// ErrRefused: the receiver answered that it does not want this, now or later.
	ErrRefused = errors.New("the receiver refuses it")
	// ErrStatus: the receiver answered, and not with success.
	ErrStatus = errors.New("the answer is no success")
	// ErrSecret: a secret that the listener names is not to be had.
	ErrSecret = errors.New("secret not available")
	// ErrAddress: the address is one that is not called.
	ErrAddress = errors.New("link-local, multicast and unspecified addresses are not called")
)

// Client makes the calls. Safe for concurrent use. Make one with New.
type Client struct {
	http    *http.Client
	secrets string
	agent   string
}

// New returns a Client that finds secrets as files in the folder secrets, a project's in the folder of its name in there
// (empty: there are none), and calls itself agent.
func New(secrets, agent string) *Client { return NewFor(secrets, agent, connsPerHostMax, CallTimeout) }

// NewFor is New with so many calls to one host at once, and so much time for a call. Who gives each call a time of its own
// by its context names the longest here: a connection that nobody waits for any more is still being made until then.
func NewFor(secrets, agent string, connsPerHost int, timeout time.Duration) *Client {
	dialer := &net.Dialer{Timeout: timeout, Control: control}
	return &Client{
		secrets: secrets, agent: agent,
		http: &http.Client{
			Timeout:       timeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				DialContext: dialer.DialContext, TLSHandshakeTimeout: timeout, ForceAttemptHTTP2: true,
				MaxConnsPerHost: connsPerHost, MaxIdleConns: idleConnsMax, MaxIdleConnsPerHost: max(2, connsPerHost/4),
				IdleConnTimeout: idleConnsTimeout, MaxResponseHeaderBytes: 32 << 10,
			},
		},
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// control is called with the address that a name was resolved to.
func control(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return ErrAddress
	}
	a := ap.Addr().Unmap()
	if a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() || a == metadataV6 {
		return ErrAddress
	}
	return nil
}

// metadataV6 is where one cloud keeps machine credentials outside of the link-local range.
var metadataV6 = netip.MustParseAddr("fd00:ec2::254")

// Post sends body and returns nil when the receiver answered 2xx. project is that of the resource which says what w is, and
// whose secrets w may name: who may write there chooses the host, and would be told those of others. id names the message:
// it is the same when the message is sent again.
func (c *Client) Post(ctx context.Context, project string, w *listener.Webhook, id string, header map[string]string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: not a URL", ErrRefused)
	}
	for name, value := range w.Headers {
		request.Header.Set(name, value)
	}
	for name, secret := range w.SecretHeaders {
		value, err := c.secret(project, secret)
		if err != nil {
			return err
		}
		request.Header.Set(name, string(value))
	}
	request.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		request.Header.Set(name, value)
	}
	request.Header.Set("User-Agent", c.agent)
	if w.Secret != "" {
		key, err := c.secret(project, w.Secret)
		if err != nil {
			return err
		}
		if err := sign(request.Header, key, id, time.Now(), body); err != nil {
			return secretError(project, w.Secret, err)
		}
	}
	response, err := c.http.Do(request)
	if err != nil {
		return withoutURL(err)
	}
	defer response.Body.Close()
	// The connection is used again only if the answer was read to its end.
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, answerBytesMax)); err != nil {
		return fmt.Errorf("read the answer: %w", withoutURL(err))
	}
	return verdict(response.StatusCode)
}

// verdict says what a status means: 2xx is success; 408, 429 and 5xx may pass; all others are for good.
func verdict(status int) error {
	switch {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests, status >= 500:
		return fmt.Errorf("%w: status %d", ErrStatus, status)
	default:
		return fmt.Errorf("%w: %w: status %d", ErrRefused, ErrStatus, status)
	}
}

// withoutURL drops the URL that net/http puts before every error.
func withoutURL(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}

// secret reads a secret anew at every call, so that it can be exchanged while the service runs. A project whose name cannot
// be that of a folder has none: its name must not lead to another's, nor to the files beside the folders.
func (c *Client) secret(project, name string) ([]byte, error) {
	if c.secrets == "" || !folderName(project) || !listener.SecretName(name) {
		return nil, secretError(project, name, errors.New("there are none"))
	}
	root, err := os.OpenRoot(c.secrets)
	if err != nil {
		return nil, secretError(project, name, err)
	}
	defer root.Close()
	file, err := root.Open(filepath.Join(project, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, secretError(project, name, errors.New("no such file"))
	}
	if err != nil {
		return nil, secretError(project, name, err)
	}
	defer file.Close()
	value, err := io.ReadAll(io.LimitReader(file, secretBytesMax+1))
	if err != nil {
		return nil, secretError(project, name, err)
	}
	value = bytes.TrimRight(value, "\r\n")
	if len(value) == 0 || len(value) > secretBytesMax || bytes.ContainsAny(value, "\r\n\x00") {
		return nil, secretError(project, name, fmt.Errorf("must be one line of 1 to %d bytes", secretBytesMax))
	}
	return value, nil
}

func secretError(project, name string, err error) error {
	return fmt.Errorf("%w: %s of project %s: %w", ErrSecret, name, project, err)
}

// folderName reports whether name can be that of a folder within another, and of no other place.
func folderName(name string) bool {
	return name != "." && filepath.IsLocal(name) && filepath.Base(name) == name
}

// sign adds a signature in the form of Standard Webhooks: HMAC-SHA256 over "id.timestamp.body". A key that begins with
// "whsec_" is base64, any other is taken as it is. The form's id holds no dot, so it is a digest of ours.
func sign(header http.Header, key []byte, id string, at time.Time, body []byte) error {
	if rest, ok := strings.CutPrefix(string(key), "whsec_"); ok {
		decoded, err := base64.StdEncoding.DecodeString(rest)
		if err != nil {
			return errors.New("behind whsec_ there must be base64")
		}
		key = decoded
	}
	digest := sha256.Sum256([]byte(id))
	messageID := "msg_" + hex.EncodeToString(digest[:16])
	timestamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(messageID + "." + timestamp + "."))
	mac.Write(body)
	header.Set("Webhook-Id", messageID)
	header.Set("Webhook-Timestamp", timestamp)
	header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return nil
}
