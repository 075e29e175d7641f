// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Words counts turns of phrase that make documentation hard to read, in the
// comments of Go files and in the prose of Markdown files, and compares the
// rates with those of package net/http of the Go installation that runs it.
//
// It prints one row for each phrase and exits with status 1 if a rate is more
// than twice that of net/http. With -v it prints each line that matches.
//
//	go run ./hack/words [-v] [FILE ...]
//
// Without arguments it reads the files that git tracks.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// floor is the rate, per 1,000 lines, that is accepted even if net/http does
// not use the phrase at all: a quotation or a name may contain it.
const floor = 0.25

// A phrase is a turn of phrase to avoid, with its replacement.
type phrase struct {
	name    string
	matches func(line string) bool
	instead string
}

var phrases = []phrase{
	{"headless what", pattern(`(?i)\bwhat (is|are|was|were|has|have|had|it|they|he|we|you|i|the|a|an|that|this|one|each|no|can|could|must|may|might|should|would|will|does|did|do|to|else|comes|came|happens|happened|goes|went|needs|[a-z]+ed)\b`), "a noun: the error, the content"},
	{"somebody, nobody, whoever", pattern(`(?i)\b(somebody|nobody|whoever|someone|anybody|everybody)\b`), "the actor: another client, the caller"},
	{"where for if", whereForIf, "if, when"},
	{"anew, for ever", pattern(`(?i)\b(anew|for ever)\b`), "again, without limit"},
	{"told", pattern(`(?i)\btold\b`), "is called with, reports"},
}

func pattern(expr string) func(string) bool { return regexp.MustCompile(expr).MatchString }

var (
	whereClause = regexp.MustCompile(`(?i)(?:([a-z]+) )?\bwhere (there|it|that|this|these|they|the|a|an|one|no|none|nothing|its|some|any|both|[a-z]+ (is|are|was|has|does|can|says|did|needs|gives|sets))\b`)
	// places are the nouns that a clause with "where" may describe.
	places = regexp.MustCompile(`(?i)^(case|situation|scenario|race|test|path|point|place|field|segment|director(y|ie)|folder|file|line|section|package|mode|environment|tree|pair|one|know|says?|shows?)s?$`)
)

// whereForIf reports whether a line has a clause with "where" that states a
// condition: one that does not follow a place.
func whereForIf(line string) bool {
	for _, match := range whereClause.FindAllStringSubmatch(line, -1) {
		if !places.MatchString(match[1]) {
			return true
		}
	}
	return false
}

// A text is prose with the place that it comes from.
type text struct {
	place string
	line  string
}

func main() {
	verbose := flag.Bool("v", false, "print each line that matches")
	flag.Parse()
	if err := run(flag.Args(), *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
}

func run(files []string, verbose bool) error {
	if len(files) == 0 {
		out, err := exec.Command("git", "ls-files", "-z", "*.go", "*.md").Output()
		if err != nil {
			return fmt.Errorf("list the files of the repository: %w", err)
		}
		for path := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
			if !strings.Contains(path, "testdata/") && !strings.HasPrefix(path, "hack/words/") && path != "DEPENDENCIES.md" {
				files = append(files, path)
			}
		}
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("find the Go installation: %w", err)
	}
	peers, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "src", "net", "http", "*.go"))
	if err != nil || len(peers) == 0 {
		return fmt.Errorf("no source of net/http in the Go installation (%v)", err)
	}
	ours, err := readAll(files)
	if err != nil {
		return err
	}
	theirs, err := readAll(peers)
	if err != nil {
		return err
	}
	return compare(ours, theirs, verbose)
}

// compare prints the rates and returns an error that names the phrases that
// are too frequent.
func compare(ours, theirs []text, verbose bool) error {
	fmt.Printf("%-28s %8s %10s %8s\n", "per 1,000 lines of prose", "here", "net/http", "limit")
	var over []string
	for _, p := range phrases {
		rate, peer := p.rate(ours), p.rate(theirs)
		limit := max(2*peer, floor)
		mark := ""
		if rate > limit {
			mark = "  too many; write " + p.instead
			over = append(over, p.name)
		}
		fmt.Printf("%-28s %8.2f %10.2f %8.2f%s\n", p.name, rate, peer, limit, mark)
		if verbose {
			for _, t := range ours {
				if p.matches(t.line) {
					fmt.Printf("  %s: %s\n", t.place, strings.TrimSpace(t.line))
				}
			}
		}
	}
	if len(over) > 0 {
		return fmt.Errorf("too frequent in %d lines: %s", len(ours), strings.Join(over, "; "))
	}
	return nil
}

// rate returns the number of matches in 1,000 lines.
func (p phrase) rate(lines []text) float64 {
	if len(lines) == 0 {
		return 0
	}
	matches := 0
	for _, t := range lines {
		if p.matches(t.line) {
			matches++
		}
	}
	return 1000 * float64(matches) / float64(len(lines))
}

func readAll(files []string) ([]text, error) {
	var all []text
	for _, path := range files {
		source, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // deleted in the work tree
		}
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(path, ".md") {
			all = append(all, prose(path, source)...)
		} else {
			all = append(all, comments(path, source)...)
		}
	}
	return all, nil
}

// comments returns the comment lines of a Go file, without its licence header.
func comments(path string, source []byte) []text {
	fset := token.NewFileSet()
	file := fset.AddFile(path, -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	var lines []text
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return lines
		}
		if tok != token.COMMENT {
			continue
		}
		literal = strings.TrimSuffix(literal, "*/")
		for i, line := range strings.Split(literal, "\n") {
			line = strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(line), "/*"))
			if line == "" || strings.HasPrefix(line, "Copyright ") || strings.HasPrefix(line, "SPDX-") {
				continue
			}
			lines = append(lines, text{fmt.Sprintf("%s:%d", path, file.Line(pos)+i), line})
		}
	}
}

// prose returns the lines of a Markdown file that are not empty and not code.
func prose(path string, source []byte) []text {
	var lines []text
	code := false
	in := bufio.NewScanner(bytes.NewReader(source))
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		line := in.Text()
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
			continue
		}
		if !code && strings.TrimSpace(line) != "" {
			lines = append(lines, text{fmt.Sprintf("%s:%d", path, n), line})
		}
	}
	return lines
}
