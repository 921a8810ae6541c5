package host

import (
	// The public certificate authorities, for where the system has none: an image that holds nothing but a program. Where
	// the system has some, its own are used, and SSL_CERT_FILE and SSL_CERT_DIR say where they are.
	_ "golang.org/x/crypto/x509roots/fallback"
)
