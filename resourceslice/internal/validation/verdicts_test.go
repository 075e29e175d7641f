// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package validation_test

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice"
)

// TestSetAndTheAPIServer compares Set with the recorded answers of a real API server to dry
// runs. Set refuses nothing that the API server accepts. The API server names the devices if it
// refuses what Set accepts, so that the others are published.
// TestResourceSliceValidation in test/e2e makes the same comparison live, and records the
// answers with -verdicts.record.
func TestSetAndTheAPIServer(t *testing.T) {
	content, err := os.ReadFile("testdata/verdicts.json")
	if err != nil {
		t.Fatal(err)
	}
	var verdicts []struct {
		Name    string
		ID      resourceslice.PoolID
		Pool    resourceslice.Pool
		Refused []string
	}
	if err := json.Unmarshal(content, &verdicts); err != nil {
		t.Fatal(err)
	}
	client := apitest.New(apitest.Options{}).Client(apitest.User{})
	refused, left := 0, 0
	for _, v := range verdicts {
		c, err := resourceslice.New(resourceslice.Config{Client: client.ResourceV1(), NodeName: "n1", Owner: resourceslice.NodeOwner(client.CoreV1().Nodes(), "n1")})
		if err != nil {
			t.Fatal(err)
		}
		err = c.Set(v.ID, v.Pool)
		if err != nil && len(v.Refused) == 0 {
			t.Errorf("%s: Set = %v; the API server accepts it", v.Name, err)
		}
		if err == nil {
			left += min(1, len(v.Refused))
			for _, path := range v.Refused {
				if !strings.HasPrefix(path, "spec.devices[") {
					t.Errorf("%s: Set accepts it; the API server refuses %s of the whole slice", v.Name, path)
				}
			}
			continue
		}
		refused++
		if ours := pathsOf(t, err); !slices.ContainsFunc(v.Refused, func(path string) bool { return namesPartOf(ours, path) }) {
			t.Errorf("%s: Set names %v, the API server %v", v.Name, ours, v.Refused)
		}
	}
	if len(verdicts) < 200 || refused < 75 || left < 50 {
		t.Errorf("%d verdicts, of which Set refuses %d and leaves %d to the API server", len(verdicts), refused, left)
	}
}

func pathsOf(t *testing.T, err error) (paths []string) {
	t.Helper()
	invalid, ok := errors.AsType[*resourceslice.InvalidError](err)
	if !ok {
		t.Fatalf("%T: %v", err, err)
	}
	for _, problem := range invalid.Err.(utilerrors.Aggregate).Errors() {
		paths = append(paths, problem.(*field.Error).Field)
	}
	return paths
}

var index = regexp.MustCompile(`\[[^]]*\]`)

// namesPartOf reports whether one of the paths of a pool is, or contains, or is
// part of, the API server's path in a slice.
func namesPartOf(ours []string, theirs string) bool {
	bare := func(path string) string { return index.ReplaceAllString(path, "") }
	theirs = bare(strings.TrimPrefix(theirs, "spec."))
	for from, to := range map[string]string{"nodeSelector": "nodes.selector", "pool.name": "name"} {
		if rest, ok := strings.CutPrefix(theirs, from); ok {
			theirs = to + rest
		}
	}
	return slices.ContainsFunc(ours, func(path string) bool {
		path = bare(path)
		return strings.HasPrefix(path, theirs) || strings.HasPrefix(theirs, path)
	})
}
