// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClassify(t *testing.T) {
	own, err := os.ReadFile(filepath.Join("..", "..", "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	const (
		bsd2 = "Redistribution and use in source and\n   binary forms, with or without … Redistributions in binary form must\nreproduce the above copyright notice"
		bsd3 = bsd2 + " … Neither the name of the company … may be used to endorse or promote products derived"
		mit  = "Permission is hereby granted, free of charge, to any person obtaining a copy … The above copyright notice and this permission notice shall be included in all copies"
	)
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"ours":       {string(own), []string{"Apache-2.0"}},
		"two":        {mit + "\n\n" + string(own), []string{"Apache-2.0", "MIT"}},
		"OFL":        {"under the SIL Open Font License,\nVersion 1.1.", []string{"OFL-1.1"}},
		"docs":       {"Attribution-ShareAlike 4.0\nInternational", []string{"CC-BY-SA-4.0"}},
		"FreeType":   {"* The FreeType License, which …, or\n* The GNU General Public License … licenses/ftl.txt", []string{"FTL"}},
		"BSD, two":   {bsd2, []string{"BSD-2-Clause"}},
		"BSD, three": {bsd3, []string{"BSD-3-Clause"}},
		"ISC":        {"Permission to use, copy, modify, and distribute this software for any purpose with or without fee", []string{"ISC"}},
		"a notice":   {"Licensed under the Apache License, Version 2.0 (the \"License\"). You may obtain a copy at\n http://www.apache.org/licenses/LICENSE-2.0", []string{"Apache-2.0"}},
		"a mention":  {"See the Apache License, Version 2.0, somewhere else.", nil},
		"none":       {"All rights reserved.", nil},
	} {
		if diff := cmp.Diff(c.want, classify(c.text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestLicenceOf(t *testing.T) {
	folder := t.TempDir()
	if got, err := licenceOf(folder); err == nil {
		t.Errorf("no licence at all: %q", got)
	}
	if err := os.WriteFile(filepath.Join(folder, "COPYING.md"), []byte("You may."), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := licenceOf(folder); err == nil {
		t.Errorf("an unknown licence: %q", got)
	}
}
