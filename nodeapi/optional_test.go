// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

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
	for i := range reflect.TypeFor[backend]().NumField() {
		capability := reflect.TypeFor[backend]().Field(i).Type
		for j := range capability.NumMethod() {
			if name := fmt.Sprint(capability, capability.Method(j).Name); !checked[name] {
				t.Errorf("%s is not checked", name)
			}
		}
	}
}

// wrongBackend has every optional method with another signature.
type wrongBackend struct{}

func (wrongBackend) Logs(int)            {}
func (wrongBackend) Exec(int)            {}
func (wrongBackend) Attach(int)          {}
func (wrongBackend) PortForward(int)     {}
func (wrongBackend) StatsSummary(int)    {}
func (wrongBackend) MetricsResource(int) {}

func TestAMethodWithAnotherSignatureIsRefused(t *testing.T) {
	_, err := New(Config{NodeName: "n", Backend: wrongBackend{}})
	if err == nil {
		t.Fatal("it was accepted")
	}
	for _, method := range []string{"Logs", "Exec", "Attach", "PortForward", "StatsSummary", "MetricsResource"} {
		if !strings.Contains(err.Error(), "Backend."+method+`: Invalid value: "func(int)": `) {
			t.Errorf("%s is missing in %v", method, err)
		}
	}
	if want := "nodeapi.Attacher needs func(context.Context, nodeapi.Container, nodeapi.Streams) error"; !strings.Contains(err.Error(), want) {
		t.Errorf("%q is missing in %v", want, err)
	}
	if want := "wrap the value"; !strings.Contains(err.Error(), want) {
		t.Errorf("%q is missing in %v", want, err)
	}
}
