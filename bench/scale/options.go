// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"
)

// options configure a run. They are part of the results.
type options struct {
	Nodes     int           `json:"nodes"`
	Pods      int           `json:"pods"`
	Duration  time.Duration `json:"duration"`  // of the churn
	PodChurn  float64       `json:"podChurn"`  // pods deleted, and as many created, per second
	NodeChurn float64       `json:"nodeChurn"` // nodes deleted per minute
	Rate      float64       `json:"rate"`      // pods created, and at the end deleted, per second
	Interval  time.Duration `json:"interval"`  // of samples
	Order     []string      `json:"order"`

	out  string // the output directory
	draw string // a results file to write the report from, instead of a run
}

// errUsage marks errors in the arguments.
var errUsage = errors.New("usage")

// parse parses the arguments.
func parse(args []string) (options, error) {
	var o options
	var order string
	fs := flag.NewFlagSet("scale", flag.ContinueOnError)
	fs.IntVar(&o.Nodes, "nodes", 1000, "`number` of nodes")
	fs.IntVar(&o.Pods, "pods", 20_000, "`number` of pods")
	fs.DurationVar(&o.Duration, "duration", 10*time.Minute, "`time` with churn, after the ramp-up")
	fs.Float64Var(&o.PodChurn, "pod-churn", 20, "pods deleted, and as many created, per `second`")
	fs.Float64Var(&o.NodeChurn, "node-churn", 6, "Nodes deleted, and registered again, per `minute`")
	fs.Float64Var(&o.Rate, "rate", 200, "maximum of pods created at the beginning, and deleted at the end, per `second`")
	fs.DurationVar(&o.Interval, "interval", 5*time.Second, "`time` between two samples")
	fs.StringVar(&order, "order", ours+","+theirs, "`order` of the contenders")
	fs.StringVar(&o.out, "out", ".", "`directory` to write to")
	fs.StringVar(&o.draw, "draw", "", "`file` of results to write the report and the picture from, instead of a run")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, errors.Join(errUsage, err)
	}
	o.Order = strings.Split(order, ",")
	if err := errors.Join(o.problems(fs)...); err != nil {
		fmt.Fprintln(fs.Output(), err)
		return o, errors.Join(errUsage, err)
	}
	return o, nil
}

// problems returns the invalid options.
func (o options) problems(fs *flag.FlagSet) (problems []error) {
	if fs.NArg() > 0 {
		problems = append(problems, fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	}
	if o.Nodes < 1 || o.Pods < 1 {
		problems = append(problems, errors.New("--nodes and --pods must be at least 1"))
	}
	if o.Rate <= 0 || o.PodChurn < 0 || o.NodeChurn < 0 {
		problems = append(problems, errors.New("--rate must be positive, --pod-churn and --node-churn must not be negative"))
	}
	if o.Interval < time.Second || o.Duration < 4*o.Interval {
		problems = append(problems, errors.New("--interval must be at least 1s, and --duration at least four intervals"))
	}
	for i, name := range o.Order {
		if _, ok := contenders[name]; !ok || slices.Contains(o.Order[:i], name) {
			problems = append(problems, fmt.Errorf("--order: %q is not one of %s and %s, or occurs twice", name, ours, theirs))
		}
	}
	return problems
}
