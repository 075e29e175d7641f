// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestEveryCapabilityIsChecked compares the methods that New checks with those of the
// optional interfaces.
func TestEveryCapabilityIsChecked(t *testing.T) {
	checked := map[string]bool{}
	for _, m := range optionalMethods {
		checked[fmt.Sprint(m.Interface(), m.Name())] = true
	}
	for i := range reflect.TypeFor[capabilities]().NumField() {
		capability := reflect.TypeFor[capabilities]().Field(i).Type
		for j := range capability.NumMethod() {
			if name := fmt.Sprint(capability, capability.Method(j).Name); !checked[name] {
				t.Errorf("%s is not checked", name)
			}
		}
	}
}

// wrongRuntime has every optional method with another signature.
type wrongRuntime struct{ Runtime }

func (wrongRuntime) Watch(int)       {}
func (wrongRuntime) Exec(int)        {}
func (wrongRuntime) LogTail(int)     {}
func (wrongRuntime) Pull(int)        {}
func (wrongRuntime) SetUpPod(int)    {}
func (wrongRuntime) TearDownPod(int) {}
func (wrongRuntime) RemovePod(int)   {}
func (wrongRuntime) ListPods(int)    {}
func (wrongRuntime) Resize(int)      {}
func (wrongRuntime) ResizePod(int)   {}
func (wrongRuntime) DiskUsage(int)   {}
func (wrongRuntime) Check(int)       {}
func (wrongRuntime) CheckPod(int)    {}

func (wrongRuntime) EndsWithProcess(int) {}

func TestAMethodWithAnotherSignatureIsRefused(t *testing.T) {
	_, err := New(Config{Root: "/", Runtime: wrongRuntime{}})
	if err == nil {
		t.Fatal("it was accepted")
	}
	for _, method := range []string{"Watch", "Exec", "LogTail", "Pull", "SetUpPod", "TearDownPod", "RemovePod", "ListPods", "Resize", "ResizePod", "DiskUsage", "Check", "CheckPod", "EndsWithProcess"} {
		if !strings.Contains(err.Error(), "Runtime."+method+`: Invalid value: "func(int)": `) {
			t.Errorf("%s is missing in %v", method, err)
		}
	}
	if want := "podruntime.Puller needs func(context.Context, *v1.Pod, *v1.Container) error"; !strings.Contains(err.Error(), want) {
		t.Errorf("%q is missing in %v", want, err)
	}
	if want := "wrap the value"; !strings.Contains(err.Error(), want) {
		t.Errorf("%q is missing in %v", want, err)
	}
}

type halfASandboxer struct{ Runtime }

func (halfASandboxer) TearDownPod(context.Context, types.UID) error { return nil }

func TestHalfASandboxerIsRefused(t *testing.T) {
	_, err := New(Config{Root: "/", Runtime: halfASandboxer{}})
	for _, want := range []string{"has TearDownPod, and podruntime.Sandboxer needs", "Runtime.SetUpPod: Required", "Runtime.RemovePod: Required", "Runtime.ListPods: Required"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}
