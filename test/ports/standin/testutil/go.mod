module github.com/hashicorp/nomad/testutil

go 1.26.0
