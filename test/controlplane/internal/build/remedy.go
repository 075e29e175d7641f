// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"fmt"
	"strings"
)

// Remedies for the failures of a build that its machine causes. Each is recognized by
// words in the error, which has the output of the go command: that has no exit codes
// for them.
var remedies = []struct{ words, remedy string }{
	{"no space left on device", "the disk is full: a first build needs about 4 GB in Go's caches and 300 MB in KUBEWRIGHT_CACHE; free some, or point GOCACHE, GOMODCACHE, TMPDIR and KUBEWRIGHT_CACHE at a larger disk"},
	{"disk quota exceeded", "the quota of the disk is used up: a first build needs about 4 GB; point GOCACHE, GOMODCACHE, TMPDIR and KUBEWRIGHT_CACHE at another disk"},
	{"signal: killed", "the system killed the compiler or linker, most likely for lack of memory: a build needs about 3 GB; close other programs, or build one package at a time with GOMAXPROCS=1"},
	{"cannot allocate memory", "the machine has too little memory left: a build needs about 3 GB; close other programs, or build one package at a time with GOMAXPROCS=1"},
	{"read-only file system", "a cache is on a read-only disk: point GOCACHE, GOMODCACHE and KUBEWRIGHT_CACHE at one that can be written"},
	{"permission denied", "a cache belongs to another user: point GOCACHE, GOMODCACHE and KUBEWRIGHT_CACHE at directories of your own"},
	{"dial tcp", "the modules can't be downloaded: check the network, and that GOPROXY names a proxy this machine reaches"},
	{"module lookup disabled by GOPROXY=off", "the modules are not in Go's module cache and GOPROXY=off forbids to download them: unset it once"},
}

// withRemedy adds a sentence that says how to mend a failed build, if the error shows a
// fault of the machine.
func withRemedy(err error) error {
	for _, r := range remedies {
		if strings.Contains(err.Error(), r.words) {
			return fmt.Errorf("%w\n%s", err, r.remedy)
		}
	}
	return err
}
