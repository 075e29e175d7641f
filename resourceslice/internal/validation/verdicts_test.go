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

// TestSetRefusesWhatTheAPIServerRefuses compares Set with the recorded answers of
// a real API server to dry runs. TestResourceSliceValidation in test/e2e makes the
// same comparison live, and records the answers with -verdicts.record.
func TestSetRefusesWhatTheAPIServerRefuses(t *testing.T) {
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
	refused := 0
	for _, v := range verdicts {
		c, err := resourceslice.New(resourceslice.Config{Client: client.ResourceV1(), NodeName: "n1", Owner: resourceslice.NodeOwner(client.CoreV1().Nodes(), "n1")})
		if err != nil {
			t.Fatal(err)
		}
		err = c.Set(v.ID, v.Pool)
		if (err == nil) != (len(v.Refused) == 0) {
			t.Errorf("%s: Set = %v; the API server refuses %v", v.Name, err, v.Refused)
		}
		if err == nil {
			continue
		}
		refused++
		if ours := pathsOf(t, err); !slices.ContainsFunc(v.Refused, func(path string) bool { return namesPartOf(ours, path) }) {
			t.Errorf("%s: Set names %v, the API server %v", v.Name, ours, v.Refused)
		}
	}
	if len(verdicts) < 150 || refused < 75 || refused > len(verdicts)-25 {
		t.Errorf("%d verdicts, %d refused", len(verdicts), refused)
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
