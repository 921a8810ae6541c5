module github.com/droverproject/drover/services/intake

go 1.26.0

require (
	github.com/droverproject/drover/pkg v0.0.0
	github.com/droverproject/drover/pkg/engine v0.0.0
	github.com/prometheus/client_golang v1.25.0
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	go.uber.org/zap v1.28.0
	golang.org/x/sync v0.24.0
)

replace (
	github.com/droverproject/drover/pkg => ../../pkg
	github.com/droverproject/drover/pkg/engine => ../../pkg/engine
	github.com/droverproject/drover/proto => ../../proto
)
