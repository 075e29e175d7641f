// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package election compares the candidates and the Controller of this library
// with client-go's elector and the API server's coordinated leader election in
// the same run. It is a separate module because k8s.io/kubernetes needs its
// staging modules replaced.
//
//	go test -run TestCompare -v .                       # the table, and that ours is first
//	go test -run TestCompare -v . -args -only crash     # one scenario
//	go test -run TestCompare . -args -runs 60 -write    # writes README.md
//
// Everything runs in virtual time against the in-memory API server. Each
// process has its own client, with 5 to 15 ms for a request and 5 ms for a
// watch event. The test measures the work: its start, its end, how long no
// process does it, and how long two processes do it. A process whose elector
// gives up ends and restarts after one second with a new identity, like a
// container. A crashed process does nothing more, on the network or otherwise.
//
// The times are those of the protocols and do not depend on the machine. They
// differ slightly between runs, because the order of simultaneous events is
// random.
package election
