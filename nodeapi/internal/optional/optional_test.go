// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package optional

import (
	"reflect"
	"strings"
	"testing"
)

type watcher interface{ Watch(name string) error }

type box interface {
	Open() error
	Close() error
}

type bigBox interface {
	box
	Grow(by int)
}

var methods = []Method{
	Of(watcher.Watch, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Watch") }),
	Of(box.Open, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Open") }),
	Of(box.Close, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Close") }),
	Of(bigBox.Open, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Open") }),
	Of(bigBox.Close, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Close") }),
	Of(bigBox.Grow, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Grow") }),
}

type watches struct{}

func (watches) Watch(string) error { return nil }

type watchesMore struct{}

func (*watchesMore) Watch(string, ...int) error { return nil }

type opens struct{}

func (opens) Open() error { return nil }

type boxes struct{ opens }

func (boxes) Close() error { return nil }

type grows struct{}

func (grows) Grow(int) {}

type hides struct{ watcher }

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		value any
		want  []string // of each problem
	}{
		{nil, nil},
		{struct{}{}, nil},
		{watches{}, nil},
		{&watches{}, nil},
		{&watchesMore{}, []string{`at.Watch: Invalid value: "func(string, ...int) error": optional.watcher needs func(string) error: correct the method of *optional.watchesMore, or`}},
		{watchesMore{}, nil}, // the value has no such method
		{hides{watches{}}, nil},
		{opens{}, []string{"at.Close: Required value: optional.opens has Open, and optional.box needs this one too, func() error: add it, or wrap the value in a type that has no method Open"}},
		{boxes{}, nil},
		{struct {
			boxes
			grows
		}{}, nil},
		{grows{}, []string{"has Grow, and optional.bigBox needs", "has Grow, and optional.bigBox needs"}},
	} {
		problems := Check("at", c.value, methods)
		if len(problems) != len(c.want) {
			t.Errorf("%T: got %v, want %d problems", c.value, problems, len(c.want))
			continue
		}
		for i, p := range problems {
			if !strings.Contains(p.Error(), c.want[i]) {
				t.Errorf("%T: got %v, want %s", c.value, p, c.want[i])
			}
		}
	}
}
