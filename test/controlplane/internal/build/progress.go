// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progressPeriod is the time between two progress lines, on a terminal or not: often enough to show that the build is
// running, and rarely enough for a CI log.
const progressPeriod = 10 * time.Second

// progress counts the lines that the go command writes, one for each module downloaded or package compiled, and
// periodically prints the count. It keeps the last lines for an error message.
type progress struct {
	out   io.Writer
	what  string
	total int // 0 if not known
	start time.Time
	quit  chan struct{}
	ended chan struct{}

	mu      sync.Mutex
	partial []byte
	count   int
	last    []string
}

// estimateAfter is the time before which the rate is not representative, because small packages come first.
const estimateAfter = 30 * time.Second

// keptLines is the number of output lines that an error shows.
const keptLines = 30

func newProgress(out io.Writer, what string, total int) *progress {
	p := &progress{out: out, what: what, total: total, start: time.Now(), quit: make(chan struct{}), ended: make(chan struct{})}
	go p.report()
	return p
}

// stop ends the reports.
func (p *progress) stop() {
	close(p.quit)
	<-p.ended
}

func (p *progress) report() {
	defer close(p.ended)
	ticker := time.NewTicker(progressPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-p.quit:
			return
		case <-ticker.C:
			fmt.Fprintln(p.out, p.line(time.Since(p.start)))
		}
	}
}

// line returns the progress line after elapsed. The estimate is an upper bound, because the total includes packages in
// Go's build cache, which are never counted.
func (p *progress) line(elapsed time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := fmt.Sprint(p.count)
	if p.total > 0 {
		count = fmt.Sprintf("%d of at most %d", p.count, p.total)
	}
	line := fmt.Sprintf("  %s: %s, %s", p.what, count, elapsed.Round(time.Second))
	if 0 < p.count && p.count < p.total && elapsed >= estimateAfter {
		left := time.Duration(float64(elapsed) * float64(p.total-p.count) / float64(p.count))
		line += fmt.Sprintf(", at most %s left at this rate", left.Round(10*time.Second))
	}
	return line
}

// Write receives the standard error of the go command.
func (p *progress) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partial = append(p.partial, data...)
	for {
		line, rest, found := bytes.Cut(p.partial, []byte("\n"))
		if !found {
			return len(data), nil
		}
		p.count++
		p.last = append(p.last, string(line))
		if len(p.last) > keptLines {
			p.last = p.last[1:]
		}
		p.partial = rest
	}
}

// tail returns the last lines.
func (p *progress) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.last, "\n")
}
