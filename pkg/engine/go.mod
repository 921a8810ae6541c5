module github.com/droverproject/drover/pkg/engine

go 1.26.0
