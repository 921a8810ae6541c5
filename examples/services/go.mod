module github.com/droverproject/drover/examples/services

go 1.26.0
