// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !aix && !solaris

package dirlock

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// The second process of a name waits and says so once; other names run beside it.
func TestForName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks", "nodes")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		unexpected := func() { t.Error("waits") }
		first, err := ForName(ctx, dir, "node-1", unexpected)
		if err != nil {
			t.Fatal(err)
		}
		other, err := ForName(ctx, dir, "node-2", unexpected)
		if err != nil {
			t.Fatal(err)
		}
		said, got := 0, make(chan error, 1)
		go func() {
			second, err := ForName(ctx, dir, "node-1", func() { said++ })
			got <- err
			if err == nil {
				<-ctx.Done()
				_ = second.Close()
			}
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(got) > 0 || said != 1 {
			t.Fatalf("the second process of a name goes on, or said %d times that it waits", said)
		}
		short, stop := context.WithTimeout(ctx, 10*time.Second)
		defer stop()
		if _, err := ForName(short, dir, "node-1", func() {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("when the context is done: %v", err)
		}
		if err := errors.Join(first.Close(), other.Close()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(nameInterval)
		synctest.Wait()
		if err := <-got; err != nil {
			t.Errorf("after the first has ended: %v", err)
		}
		for _, name := range []string{"", "..", "a/b", "/a"} {
			if _, err := ForName(ctx, dir, name, func() {}); err == nil {
				t.Errorf("%q: no error", name)
			}
		}
		cancel()
		synctest.Wait()
	})
}
