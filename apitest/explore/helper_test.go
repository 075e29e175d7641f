// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore_test

import (
	"flag"
	"sync"
	"testing"
)

// inTest calls f once in a test, because an Example has no *testing.T.
func inTest(f func(t *testing.T)) {
	verbose := flag.Lookup("test.v").Value
	was := verbose.String()
	_ = verbose.Set("false") // the names of tests are not output of the Example
	var once sync.Once       // -count
	testing.RunTests(func(string, string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "TestExample", F: func(t *testing.T) { once.Do(func() { f(t) }) }}})
	_ = verbose.Set(was)
}
