// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package process is a podsync.Provider that runs the containers of a pod as
// processes of the machine: no image, no isolation, but everything else that
// makes a pod: environment and volumes from the API, init containers and
// sidecars in order, restarts with back-off, probes, hooks, a graceful end, exit
// codes, and pods that outlive the program.
//
// Each pod has a folder and a goroutine. The folder (file store.go) holds all
// that has to outlive this process: the pod, what was decided about it, and a
// folder for each run of a container, which belongs to package shim. The
// goroutine (pod.go) looks at what it knows, asks the pure function next (file
// plan.go) what to do, does it, publishes the status and waits until something
// has changed. What happens elsewhere, such as the end of a process, a probe or
// a call of podsync, is handed to that goroutine as a function; nothing else
// touches the pod.
package process
