// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	o, err := parse([]string{"--nodes=100", "--pods=1000", "--duration=1m", "--order=kwok,kubewright"})
	if err != nil {
		t.Fatal(err)
	}
	if o.Nodes != 100 || o.Pods != 1000 || o.Duration != time.Minute || !slices.Equal(o.Order, []string{theirs, ours}) {
		t.Errorf("%+v", o)
	}
	if o, err = parse(nil); err != nil || o.Nodes != 1000 || o.Pods != 20_000 || o.Duration != 10*time.Minute || !slices.Equal(o.Order, []string{ours, theirs}) {
		t.Errorf("by default: %+v, %v", o, err)
	}
	for _, bad := range []string{
		"--nodes=0", "--pods=0", "--pods=many", "--rate=0", "--pod-churn=-1", "--node-churn=-1", "--interval=1ms", "--duration=10s",
		"--order=", "--order=kwok,kwok", "--order=kubelet", "more",
	} {
		if _, err := parse([]string{bad}); !errors.Is(err, errUsage) {
			t.Errorf("%s: %v, want that it is wrong", bad, err)
		}
	}
	if _, err := parse([]string{"--help"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
}

func TestKwokVersionIsThatOfTheModule(t *testing.T) {
	data, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "sigs.k8s.io/kwok "+kwokVersion+"\n") {
		t.Errorf("go.mod requires another version of kwok than %s", kwokVersion)
	}
}
