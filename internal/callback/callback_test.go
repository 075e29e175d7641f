// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package callback

import (
	"errors"
	"strings"
	"testing"
)

func TestContain(t *testing.T) {
	answer := errors.New("an answer")
	if err := Contain("Gate", func() error { return answer }); err != answer {
		t.Errorf("Contain = %v, want the callback's error", err)
	}
	value, err := Get("Owner", func() (string, error) { return "value", answer })
	if value != "value" || err != answer {
		t.Errorf("Get = %q, %v, want both results of the callback", value, err)
	}
	value, err = Get("Owner", func() (string, error) { panic(answer) })
	p, ok := errors.AsType[*PanicError](err)
	if value != "" || !ok || errors.Is(err, answer) {
		t.Fatalf("Get = %q, %v, want a PanicError that does not wrap its value", value, err)
	}
	if p.Error() != "panic in Owner: an answer" {
		t.Errorf("Error = %q", p)
	}
	if !strings.Contains(string(p.Stack()), "TestContain") {
		t.Errorf("the stack does not show the callback:\n%s", p.Stack())
	}
}
