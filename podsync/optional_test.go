// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
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

// wrongProvider has every optional method with another signature.
type wrongProvider struct{ Provider }

func (wrongProvider) Update(int)   {}
func (wrongProvider) Watch(int)    {}
func (wrongProvider) Inspect(int)  {}
func (wrongProvider) Release(int)  {}
func (wrongProvider) Admit(int)    {}
func (wrongProvider) Annotate(int) {}

func TestAMethodWithAnotherSignatureIsRefused(t *testing.T) {
	_, err := New(Config{NodeName: "n", Provider: wrongProvider{}})
	if err == nil {
		t.Fatal("it was accepted")
	}
	for _, method := range []string{"Update", "Watch", "Inspect", "Release", "Admit", "Annotate"} {
		if !strings.Contains(err.Error(), "Provider."+method+`: Invalid value: "func(int)": `) {
			t.Errorf("%s is missing in %v", method, err)
		}
	}
	if want := "podsync.Updater needs func(context.Context, *v1.Pod) (podsync.State, error)"; !strings.Contains(err.Error(), want) {
		t.Errorf("%q is missing in %v", want, err)
	}
	if want := "wrap the value"; !strings.Contains(err.Error(), want) {
		t.Errorf("%q is missing in %v", want, err)
	}
}
