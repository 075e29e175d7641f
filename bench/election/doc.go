// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package election measures the candidates and the Controller of this library
// beside client-go's elector and the API server's own coordinated leader
// election, in the same run. It is a module of its own because k8s.io/kubernetes
// needs its staging modules replaced.
//
//	go test -run TestCompare -v .                       # the table, and that ours is first
//	go test -run TestCompare -v . -args -only crash     # one scenario
//	go test -run TestCompare . -args -runs 60 -write    # writes README.md
//
// Everything runs in virtual time against the in-memory API server: processes
// have a client of their own with 5 to 15 ms for a request and 5 ms for a watch
// event. What is measured is the work: when it begins, when it has ended, for
// how long nobody does it and for how long two do it. A process whose elector
// gives up ends and is started again after a second under a new identity, as a
// container would be. A crashed process does nothing more, on the network or
// otherwise.
//
// The times are those of the protocols, free of the machine. They differ a
// little between runs, for who comes first at the same instant is not decided.
package election
