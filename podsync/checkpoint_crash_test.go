// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/durable/crashfs"
)

// Whenever the power is cut, each record is as it was before the call under way or after it.
func TestCheckpointDirSurvivesPowerCuts(t *testing.T) {
	type step struct {
		uid  types.UID
		data string // "": removed
	}
	steps := []step{{"u1", "a"}, {"u2", "b"}, {"u1", "cc"}, {"u2", ""}, {"u3", "d"}, {"u1", ""}}
	cuts := 0
	for at := 1; ; at++ {
		disk := crashfs.New()
		disk.CrashAt = at
		done, crashed := 0, false
		func() {
			defer func() {
				if p := recover(); p != nil {
					if _, crashed = p.(crashfs.Crashed); !crashed {
						panic(p)
					}
				}
			}()
			c := checkpointOn(disk)
			if _, err := c.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, s := range steps {
				var err error
				if s.data == "" {
					err = c.Remove(t.Context(), s.uid)
				} else {
					err = c.Save(t.Context(), s.uid, []byte(s.data))
				}
				if err != nil {
					t.Fatal(err)
				}
				done++
			}
		}()
		want := func(n int) string {
			state := map[types.UID]string{}
			for _, s := range steps[:n] {
				if s.data == "" {
					delete(state, s.uid)
				} else {
					state[s.uid] = s.data
				}
			}
			return fmt.Sprint(state)
		}
		for _, image := range disk.PowerCut(false) {
			cuts++
			got, err := checkpointOn(disk.Boot(image)).Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			state := map[types.UID]string{}
			for uid, data := range got {
				state[uid] = string(data)
			}
			if s := fmt.Sprint(state); s != want(done) && s != want(min(done+1, len(steps))) {
				t.Errorf("cut at %d after %d steps: %s, want %s or %s", at, done, s, want(done), want(min(done+1, len(steps))))
			}
		}
		if !crashed {
			break
		}
	}
	if cuts < 20 {
		t.Errorf("%d power cuts only", cuts)
	}
}
