// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// licences are recognized by words that every copy of their text contains. A
// file may contain several licences.
var licences = []struct {
	id    string
	words []string
	not   string // words that indicate a different licence
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0", "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION"}, ""},
	{"Apache-2.0", []string{"Licensed under the Apache License, Version 2.0", "apache.org/licenses/LICENSE-2.0"}, "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION"}, // its notice alone
	{"MIT", []string{"Permission is hereby granted, free of charge, to any person obtaining a copy", "above copyright notice and this permission notice shall be included"}, ""},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "Redistributions in binary form must reproduce", "may be used to endorse or promote products"}, ""},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms", "Redistributions in binary form must reproduce"}, "may be used to endorse or promote products"},
	{"ISC", []string{"Permission to use, copy, modify, and/or distribute this software for any purpose"}, ""},
	{"ISC", []string{"Permission to use, copy, modify, and distribute this software for any purpose"}, ""},
	{"OFL-1.1", []string{"SIL Open Font License", "Version 1.1"}, ""},
	{"Bitstream-Vera", []string{"copy of the fonts accompanying this license", "Bitstream Vera"}, ""},
	{"LPPL-1.3c", []string{"GUST Font License", "LaTeX Project Public License", "version 1.3c"}, ""},
	{"CC-BY-4.0", []string{"Creative Commons Attribution 4.0"}, ""},
	{"CC-BY-SA-4.0", []string{"Attribution-ShareAlike 4.0 International"}, ""}, // of the documentation of go-digest
	{"FTL", []string{"FreeType License", "FTL"}, ""},
	{"MPL-2.0", []string{"Mozilla Public License Version 2.0"}, ""},
	{"MPL-2.0", []string{"Mozilla Public License, version 2.0", "Covered Software"}, "Mozilla Public License Version 2.0"},
}

// classify returns the SPDX identifiers of the licences in text. It ignores
// line breaks and case.
func classify(text string) (ids []string) {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	has := func(words string) bool { return strings.Contains(text, strings.ToLower(words)) }
next:
	for _, l := range licences {
		if l.not != "" && has(l.not) {
			continue
		}
		for _, words := range l.words {
			if !has(words) {
				continue next
			}
		}
		ids = append(ids, l.id)
	}
	return ids
}
