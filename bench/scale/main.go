// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// errClaims is the error of a run in which a claim did not hold.
var errClaims = errors.New("not all claims hold")

func run(ctx context.Context, args []string, stdout io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.draw != "" {
		r, err := load(o.draw)
		if err != nil {
			return err
		}
		return conclude(r, o.out, stdout)
	}
	env, launcher, err := prepare(ctx, o)
	if err != nil {
		return err
	}
	defer os.RemoveAll(env.temp)
	r := &results{When: time.Now(), Machine: thisMachine(), Options: o}
	for _, name := range o.Order {
		r.Contenders = append(r.Contenders, *measure(ctx, env, launcher, name, o))
		// Save the results so far, in case the next contender fails.
		if err := r.save(filepath.Join(o.out, "run.json")); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
	}
	return conclude(r, o.out, stdout)
}

// prepare creates the directories, and builds the program that starts control
// planes.
func prepare(ctx context.Context, o options) (*environment, string, error) {
	repo, err := repository()
	if err != nil {
		return nil, "", err
	}
	out, err := filepath.Abs(o.out)
	if err == nil {
		err = os.MkdirAll(out, 0o755)
	}
	if err != nil {
		return nil, "", err
	}
	temp, err := os.MkdirTemp("", "kubewright-scale-")
	if err != nil {
		return nil, "", err
	}
	launcher := filepath.Join(temp, "controlplane")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", launcher, ".")
	cmd.Dir = filepath.Join(repo, "test", "controlplane")
	cmd.Env = append(os.Environ(), "PWD="+cmd.Dir)
	if err := quietly(cmd); err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(temp))
	}
	return &environment{repo: repo, temp: temp, out: out}, launcher, nil
}

// conclude writes the report and the picture, prints the verdicts on this
// library, and returns errClaims if a claim does not hold.
func conclude(r *results, out string, stdout io.Writer) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	err := errors.Join(
		create(filepath.Join(out, "report.md"), func(w io.Writer) error { return writeReport(w, r) }),
		create(filepath.Join(out, "scale.svg"), func(w io.Writer) error { return writePicture(w, r) }),
	)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "the report is %s\n", filepath.Join(out, "report.md"))
	for i := range r.Contenders {
		c := &r.Contenders[i]
		if c.Error != "" {
			fmt.Fprintf(stdout, "%s: %s\n", c.Name, c.Error)
		}
		if c.Name != ours {
			continue
		}
		verdicts := judge(c, r.Options)
		for _, v := range verdicts {
			fmt.Fprintf(stdout, "%-4s %s: %s\n", map[bool]string{true: "ok", false: "FAIL"}[v.Holds], v.Claim, v.Seen)
		}
		if !holds(verdicts) {
			err = errClaims
		}
	}
	return err
}

// create writes a file.
func create(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
