module gputide.test/sender

go 1.26.0

require (
	github.com/prometheus/client_golang/exp v0.0.0-20260907100614-57bb367da472
	google.golang.org/protobuf v1.36.12
)

require github.com/klauspost/compress v1.19.2 // indirect
