module github.com/droverproject/drover/examples/fleet

go 1.26.0
