module olm

go 1.26.0

require github.com/operator-framework/api v0.9.1
