// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package enum

import (
	"errors"
	"testing"
)

type colour int

const (
	red colour = iota
	green
)

func (c colour) String() string { return Name(c, "Red", "Green") }

func TestName(t *testing.T) {
	for c, want := range map[colour]string{red: "Red", green: "Green", 2: "Invalid(2)", -1: "Invalid(-1)"} {
		if got := c.String(); got != want {
			t.Errorf("%d is %q, want %q", int(c), got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []colour{red, green} {
		if problems := Check("Colour", c, green); len(problems) != 0 {
			t.Errorf("%v: %v", c, problems)
		}
	}
	for _, c := range []colour{-1, 2} {
		want := `Colour: Unsupported value: "` + c.String() + `": supported values: "Red", "Green"`
		if err := errors.Join(Check("Colour", c, green)...); err == nil || err.Error() != want {
			t.Errorf("%d: %v, want %s", int(c), err, want)
		}
	}
}
