// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubewright/kubewright/test/controlplane/internal/build"
	"github.com/kubewright/kubewright/test/controlplane/internal/cluster"
)

func TestParseUp(t *testing.T) {
	f, err := parseUp([]string{
		"--name=x", "--version=1.36", "--single-process", "--audit", "--start-timeout=5s", "--without=kube-scheduler",
		"--feature-gates=A=true,B=false", "--runtime-config=resource.k8s.io/v1=false",
		"--arg=etcd=--log-level=warn", "--arg", "kube-apiserver=--v=4", "--arg=kube-apiserver=--profiling",
	})
	if err != nil {
		t.Fatal(err)
	}
	if f.name != "x" || f.Version != "v1.36.3" || !f.SingleProcess || !f.Audit || f.timeout != 5*time.Second || f.detach ||
		f.FeatureGates != "A=true,B=false" || f.RuntimeConfig != "resource.k8s.io/v1=false" || !slices.Equal(f.Without, []string{cluster.Scheduler}) {
		t.Errorf("parsed %+v", f)
	}
	if got := f.ExtraArgs[cluster.APIServer]; !slices.Equal(got, []string{"--v=4", "--profiling"}) {
		t.Errorf("API server's arguments %q", got)
	}
	if got := f.ExtraArgs[cluster.Etcd]; !slices.Equal(got, []string{"--log-level=warn"}) {
		t.Errorf("etcd's arguments %q", got)
	}
}

func TestParseUpDefaults(t *testing.T) {
	f, err := parseUp(nil)
	if err != nil {
		t.Fatal(err)
	}
	if f.name != "" || f.Version != build.DefaultVersion || f.timeout != cluster.ReadyTimeout {
		t.Errorf("parsed %+v", f)
	}
	if f, err = parseUp([]string{"--detach"}); err != nil || f.name != defaultName {
		t.Errorf("detached: name %q, %v", f.name, err)
	}
}

func TestParseUpRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"version":      {[]string{"--version=1.12"}, `no Kubernetes version "1.12"`},
		"positional":   {[]string{"now"}, `unexpected argument "now"`},
		"without etcd": {[]string{"--without=etcd"}, "can't run without"},
		"component":    {[]string{"--arg=kubelet=--v=4"}, `"kubelet": no such component`},
		"no component": {[]string{"--arg=--v"}, "want COMPONENT=--FLAG=VALUE"},
		"no flag":      {[]string{"--arg=etcd=v=4"}, "want --flag"},
		"gates":        {[]string{"--single-process", "--arg=kube-scheduler=--feature-gates=A=true"}, "one set of feature gates"},
	} {
		if _, err := parseUp(tc.args); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one that says %s", name, err, tc.want)
		}
	}
}

// TestPins checks that each version's go.mod is the output of versions/pin.sh. If a staging module had another version
// than its Kubernetes, the program would build but would not be any released Kubernetes.
func TestPins(t *testing.T) {
	versions, err := build.Versions(source)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"v1.37.2", "v1.36.3", "v1.35.4", "v1.34.4"}; !slices.Equal(versions, want) {
		t.Fatalf("versions %q, want %q", versions, want)
	}
	replace := regexp.MustCompile(`(?m)^\t(k8s\.io/[a-z-]+) => (k8s\.io/[a-z-]+) (v\S+)$`)
	for _, v := range versions {
		mod, err := source.ReadFile("versions/" + v + ".mod")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(mod), "\tk8s.io/kubernetes "+v+"\n") {
			t.Errorf("%s.mod does not require k8s.io/kubernetes %s", v, v)
		}
		staging := "v0." + strings.TrimPrefix(v, "v1.")
		found := replace.FindAllStringSubmatch(string(mod), -1)
		if len(found) < 30 {
			t.Errorf("%s.mod replaces %d staging modules", v, len(found))
		}
		for _, m := range found {
			if m[1] != m[2] || m[3] != staging {
				t.Errorf("%s.mod: %s is replaced by %s %s, want %s", v, m[1], m[2], m[3], staging)
			}
		}
		sum, err := source.ReadFile("versions/" + v + ".sum")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(sum), "k8s.io/kubernetes "+v+" h1:") {
			t.Errorf("%s.sum has no k8s.io/kubernetes %s", v, v)
		}
	}
}
