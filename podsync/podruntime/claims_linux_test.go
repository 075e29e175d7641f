// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/rmtree/rmtreetest"
)

// Nothing is unprepared while it is not known what other pods have.
func TestASharedClaimStaysWhileTheRecordsCantBeRead(t *testing.T) {
	for name, tc := range map[string]struct {
		fault, end func(dir string) error
	}{
		"no list": {
			func(dir string) error { return os.Chmod(dir, 0o300) }, // as an input/output error
			func(dir string) error { return os.Chmod(dir, 0o700) },
		},
		"another file": {
			func(dir string) error { return os.Mkdir(filepath.Join(dir, "three.json"), 0o700) },
			func(dir string) error { return os.Remove(filepath.Join(dir, "three.json")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			claims, drivers, _ := newClaims(t)
			for _, uid := range []types.UID{"one", "two"} {
				if err := claims.Prepare(t.Context(), claimPod(uid)); err != nil {
					t.Fatal(err)
				}
			}
			if err := tc.fault(claims.Dir); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tc.end(claims.Dir) })
			release := func() error { return claims.Release(t.Context(), "one") }
			if err := rmtreetest.AsNobody(t, filepath.Dir(claims.Dir), release); err == nil || len(drivers.prepared) != 2 {
				t.Errorf("Release = %v, prepared are %v, and pod two has the claim of both drivers", err, drivers.prepared)
			}
			if err := tc.end(claims.Dir); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(claims.Release(t.Context(), "one"), claims.Release(t.Context(), "two")); err != nil || len(drivers.prepared) != 0 {
				t.Errorf("Release = %v, and %v are still prepared", err, drivers.prepared)
			}
		})
	}
}
