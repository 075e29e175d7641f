// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const driver = "gpu.example.com"

func parse(t *testing.T, data []byte) *Log {
	t.Helper()
	l, err := Parse(driver, data)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Check(); err != nil {
		t.Fatalf("%v in\n%s", err, data)
	}
	return l
}

// state sums up the claims of a log, the ended ones too.
func state(l *Log) string {
	var parts []string
	for _, n := range l.current() {
		e := n.entry
		text := fmt.Sprintf("%s %s", e.UID, e.Phase)
		if len(e.State) > 0 {
			text += " " + string(e.State)
		}
		if e.Undoing {
			text += " undoing"
		}
		if e.Ended {
			text += " ended"
		}
		if e.Unreadable {
			text += " unreadable"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// TestScripts runs the scripts in testdata. A script has a command in each line:
//
//	add UID PHASE [STATE]   write a record
//	undo UID, end UID       write its mark
//	unmarked UID            it has no record that could get a mark
//	tear UID PHASE N        write N bytes of a record, as a power cut leaves it
//	spoil TEXT              replace each such text in the file
//	reread                  read the file as another process does
//	rewrite                 replace the file
//	state TEXT              the claims must be these
//	lost N                  so many damaged lines must stand for no claim
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range scripts {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			l := New(driver)
			disk := slices.Clone(l.raw)
			write := func(data []byte, offset int) {
				disk = slices.Replace(disk, offset, min(len(disk), offset+len(data)), data...)
				l.Wrote(data, offset)
				if !l.Is(disk) {
					t.Fatalf("the log is\n%q, and the file\n%q", l.raw, disk)
				}
			}
			for i, command := range strings.Split(string(text), "\n") {
				word, rest, _ := strings.Cut(command, " ")
				args := strings.SplitN(rest, " ", 3)
				where := fmt.Sprintf("%s:%d: %s", path, i+1, command)
				switch word {
				case "", "#":
				case "add":
					e := Entry{UID: args[0], Phase: Phase(args[1])}
					if len(args) > 2 {
						e.State = json.RawMessage(args[2])
					}
					data, offset, err := l.Append(e)
					if err != nil {
						t.Fatal(where, err)
					}
					write(data, offset)
				case "undo", "end":
					mark := Undoing
					if word == "end" {
						mark = Ended
					}
					data, offset, ok := l.Mark(args[0], mark)
					if !ok {
						t.Fatalf("%s: there is nothing to mark", where)
					}
					write(data, offset)
				case "tear":
					data, offset, err := l.Append(Entry{UID: args[0], Phase: Phase(args[1])})
					if err != nil {
						t.Fatal(where, err)
					}
					var n int
					fmt.Sscan(args[2], &n)
					l = parse(t, append(l.raw[:offset:offset], data[:n]...))
				case "spoil":
					if !strings.Contains(string(l.raw), rest) {
						t.Fatalf("%s: no such text in\n%s", where, l.raw)
					}
					l = parse(t, []byte(strings.ReplaceAll(string(l.raw), rest, strings.Repeat("?", len(rest)))))
				case "reread":
					l = parse(t, slices.Clone(l.raw))
				case "rewrite":
					l = parse(t, l.Rewritten())
					if l.Wasteful() {
						t.Errorf("%s: the new file is wasteful", where)
					}
				case "unmarked":
					for _, mark := range []byte{Undoing, Ended} {
						if _, _, ok := l.Mark(args[0], mark); ok {
							t.Errorf("%s: it gets the mark %q", where, mark)
						}
					}
				case "state":
					if got := state(l); got != rest {
						t.Errorf("%s: the claims are\n%s", where, got)
					}
				case "lost":
					if got := fmt.Sprint(len(l.Lost())); got != rest {
						t.Errorf("%s: %s", where, got)
					}
					if rest != "0" && !l.Wasteful() {
						t.Errorf("%s: the file is not replaced", where)
					}
				default:
					t.Fatalf("%s: unknown command", where)
				}
				if err := l.Check(); err != nil {
					t.Fatalf("%s: %v", where, err)
				}
				disk = slices.Clone(l.raw)
			}
		})
	}
}

func TestParseRefusesWhatItMustNotWrite(t *testing.T) {
	for header, want := range map[string]error{
		"claimstore 2 gpu.example.com\n":  ErrVersion,
		"claimstore 1 nic.example.com\n":  ErrDriver,
		"claimstore 1 gpu.example.com \n": nil,
		"claimst?re 1 gpu.example.com\n":  nil,
		"":                                nil,
	} {
		if _, err := Parse(driver, []byte(header)); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", header, err, want)
		}
	}
}

func TestARecordOfANewerVersionIsUnreadable(t *testing.T) {
	object := `{"v":2,"uid":"a","phase":"Frozen","devices":[{"pool":"n1","name":"gpu-0"}]}`
	l := parse(t, fmt.Appendf(New(driver).raw, "+ %s %s\n+ 0 x\n", checksum([]byte(object)), object))
	e, ok := l.Get("a")
	if !ok || !e.Unreadable {
		t.Fatalf("%+v, %v, want an unreadable entry", e, ok)
	}
	if holder, ok := l.Holder("b", Device{Pool: "n1", Name: "gpu-0"}); !ok || holder.UID != "a" {
		t.Errorf("the device of the unreadable claim is free: %+v, %v", holder, ok)
	}
}

// What comes behind a line that can't be read is kept, and the line is not taken for the
// piece that a power cut has left, which is written over.
func TestALineThatIsNoRecordIsLost(t *testing.T) {
	sealed := func(object string) string { return "+ " + checksum([]byte(object)) + " " + object + "\n" }
	good := sealed(`{"v":1,"uid":"b","phase":"Prepared"}`)
	for name, text := range map[string]string{
		"short":             "+ 0 x\n",
		"without an object": sealed(""),
		"of another type":   sealed(`{"v":1,"uid":"a","phase":7}`),
	} {
		l := parse(t, []byte(string(New(driver).raw)+text+good))
		if got := state(l); got != "b Prepared" || len(l.Lost()) != 1 || l.good != len(l.raw) {
			t.Errorf("%s: the claims are %s, and %q is lost", name, got, l.Lost())
		}
		l = parse(t, []byte(string(New(driver).raw)+good+text))
		if data, offset, err := l.Append(Entry{UID: "c", Phase: Prepared}); err != nil || offset != len(New(driver).raw)+len(good) {
			t.Errorf("%s as the last line: %q is written at %d, %v", name, data, offset, err)
		}
	}
}

// A record that covers the piece of a longer one ends where the piece ended.
func TestARecordIsNoLongerThanThePieceThatItCovers(t *testing.T) {
	l := New(driver)
	long, _, _ := l.Append(Entry{UID: strings.Repeat("a", 200), Phase: Preparing})
	short, _, _ := l.Append(Entry{UID: "b", Phase: Preparing})
	for _, n := range []int{len(short) - 1, len(short), len(short) + 1, len(long) - 1} {
		l := parse(t, append(slices.Clone(New(driver).raw), long[:n]...))
		data, _, err := l.Append(Entry{UID: "b", Phase: Preparing})
		if err != nil || len(data) != max(n, len(short)) || data[len(data)-1] != '\n' {
			t.Errorf("a piece of %d bytes is covered by %d: %q, %v", n, len(data), data, err)
		}
	}
}

func TestABlankLineIsNoDamage(t *testing.T) {
	l := parse(t, append(New(driver).raw, "   \n\n"...))
	if len(l.Lost()) > 0 || l.Wasteful() {
		t.Errorf("lost %q", l.Lost())
	}
}

// A file is renamed into place with its header, so one without a line had records, and they
// are lost: a disk has zeros after some power cuts. What it named is not certain.
func TestAFileWithoutALineHasLostItsRecords(t *testing.T) {
	for _, text := range []string{"", "\n", "  ", strings.Repeat("\x00", 4096), "claimstore"} {
		l := parse(t, []byte(text))
		if len(l.Lost()) != 1 || !l.Wasteful() {
			t.Errorf("%.20q: %q is lost, wasteful is %v", text, l.Lost(), l.Wasteful())
		}
		if _, used, err := l.User("n1", "gpu-0", nil); used || !errors.Is(err, ErrIncomplete) {
			t.Errorf("%.20q: %v, %v", text, used, err)
		}
		if _, _, err := parse(t, l.Rewritten()).User("n1", "gpu-0", l.Lost()); !errors.Is(err, ErrIncomplete) {
			t.Errorf("%.20q, rewritten: %v", text, err)
		}
	}
}

// A file without its first line is replaced, and one that has what it should have is the
// same after that.
func TestARewriteOfAFileWithoutClaims(t *testing.T) {
	for _, text := range []string{"", "\n", string(New(driver).raw)} {
		l := parse(t, []byte(text))
		if want := text != string(New(driver).raw); l.Wasteful() != want {
			t.Errorf("%q: wasteful is %v", text, l.Wasteful())
		}
		if got := string(l.Rewritten()); got != string(New(driver).raw) {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestHolder(t *testing.T) {
	gpu, part := Device{Pool: "n1", Name: "gpu-0"}, Device{Pool: "n1", Name: "gpu-0", ShareID: "s1"}
	l := New(driver)
	for _, e := range []Entry{{UID: "a", Phase: Preparing, Devices: []Device{gpu}}, {UID: "z", Phase: Preparing}} {
		data, offset, _ := l.Append(e)
		l.Wrote(data, offset)
	}
	for _, c := range []struct {
		uid    string
		device Device
		want   bool
	}{{"b", gpu, true}, {"a", gpu, false}, {"b", part, false}, {"b", Device{Pool: "n2", Name: "gpu-0"}, false}} {
		if _, held := l.Holder(c.uid, c.device); held != c.want {
			t.Errorf("Holder(%s, %+v) is %v", c.uid, c.device, held)
		}
	}
	mark, offset, _ := l.Mark("a", Ended)
	l.Wrote(mark, offset)
	if _, held := l.Holder("b", gpu); held {
		t.Error("a claim that has ended holds its device")
	}
}

// All yields what has not ended, once, and Append refuses a state that is no JSON.
func TestAll(t *testing.T) {
	l := New(driver)
	for _, uid := range []string{"a", "b", "c", "a"} {
		data, offset, err := l.Append(Entry{UID: uid, Phase: Prepared})
		if err != nil {
			t.Fatal(err)
		}
		l.Wrote(data, offset)
	}
	mark, offset, _ := l.Mark("b", Ended)
	l.Wrote(mark, offset)
	var got []string
	for e := range l.All() {
		got = append(got, e.UID)
	}
	if want := []string{"c", "a"}; !slices.Equal(got, want) {
		t.Errorf("the claims are %q, want %q", got, want)
	}
	if data, _, err := l.Append(Entry{UID: "d", Phase: Prepared, State: json.RawMessage("{")}); err == nil {
		t.Errorf("%q is written", data)
	}
}

func TestARewriteKeepsTheNewestTombstones(t *testing.T) {
	l := New(driver)
	for i := range 20 { // claims that have not ended count for nothing
		data, offset, _ := l.Append(Entry{UID: fmt.Sprint("live", i), Phase: Prepared})
		l.Wrote(data, offset)
	}
	for i := range keptEnded + 10 {
		data, offset, _ := l.Append(Entry{UID: fmt.Sprint(i), Phase: Prepared})
		l.Wrote(data, offset)
		mark, offset, _ := l.Mark(fmt.Sprint(i), Ended)
		l.Wrote(mark, offset)
	}
	l = parse(t, l.Rewritten())
	_, oldest := l.Get("9")
	_, kept := l.Get("10")
	if oldest || !kept || len(l.latest) != keptEnded+20 {
		t.Errorf("%d tombstones; the tenth is there: %v, the eleventh: %v", len(l.latest), oldest, kept)
	}
}

func TestWasteful(t *testing.T) {
	l := New(driver)
	add := func(uid string) {
		data, offset, _ := l.Append(Entry{UID: uid, Phase: Prepared, State: json.RawMessage(`"` + strings.Repeat("x", 1000) + `"`)})
		l.Wrote(data, offset)
	}
	for range slack / 1200 {
		add("a")
	}
	if l.Wasteful() {
		t.Errorf("%d bytes for one claim are wasteful", len(l.raw))
	}
	for range 10 {
		add("a")
	}
	if !l.Wasteful() {
		t.Errorf("%d bytes for one claim are not wasteful", len(l.raw))
	}
	if after := parse(t, l.Rewritten()); state(after) != state(l) || len(after.raw) > 2000 {
		t.Errorf("%d bytes after a rewrite, %s", len(after.raw), state(after))
	}
}

func FuzzParse(f *testing.F) {
	good, _ := Encode(Entry{UID: "a", Phase: Prepared, State: json.RawMessage(`{"x":1}`)})
	gone, _ := Encode(Entry{UID: "b", Phase: Absent, Ended: true})
	header := string(New(driver).raw)
	f.Add(header+string(good)+string(gone), "a")
	f.Add(header+string(good)+string(good[:40]), "b")
	f.Add(string(good)+"\n\n"+string(gone), "")
	f.Add(header+strings.ReplaceAll(string(good), "x", "y")+string(good)+string(gone), "a")
	f.Fuzz(func(t *testing.T, data, uid string) {
		l, err := Parse(driver, []byte(data))
		if err != nil {
			return
		}
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		before := state(l)
		again := parse(t, l.Rewritten())
		if got := state(again); got != before {
			t.Fatalf("%q became %q in a rewrite", before, got)
		}
		if mark, offset, ok := l.Mark(uid, Ended); ok {
			l.Wrote(mark, offset)
		}
		if uid != "" && utf8.ValidString(uid) {
			line, offset, err := l.Append(Entry{UID: uid, Phase: Preparing})
			if err != nil {
				t.Fatal(err)
			}
			l.Wrote(line, offset)
			if e, ok := l.Get(uid); !ok || e.Unreadable || e.Ended {
				t.Fatalf("%+v, %v after its record was written", e, ok)
			}
		}
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		if read := parse(t, slices.Clone(l.raw)); !l.headerDamaged && state(read) != state(l) {
			t.Fatalf("another process reads %q instead of %q", state(read), state(l))
		}
	})
}
