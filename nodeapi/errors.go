// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/exec"
)

// ErrAlreadyRun is the error of a second call of Server.Run.
var ErrAlreadyRun = errors.New("nodeapi: Run was called before")

// A PanicError is the error that Config.ErrorHandler and Hooks.Request get if the
// backend or another callback panics. The client sees status 500.
type PanicError struct {
	// Value is the value that the callback panicked with.
	Value any
	// Stack is the stack of the goroutine that panicked.
	Stack []byte
}

// Error returns the value and the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// statusError is an error with the HTTP status that a client sees.
type statusError struct {
	code int
	msg  string
}

func (e *statusError) Error() string { return e.msg }

func badRequest(format string, args ...any) error {
	return &statusError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) error {
	return &statusError{http.StatusNotFound, fmt.Sprintf(format, args...)}
}

// answerTo returns the status and the sentence that a client gets for an error.
func answerTo(err error) (code int, sentence string) {
	if own, ok := errors.AsType[*statusError](err); ok {
		return own.code, own.msg
	}
	if _, ok := errors.AsType[*PanicError](err); ok {
		return http.StatusInternalServerError, "the node failed to serve this request" // the stack is for the log
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		if code := int(status.Status().Code); code >= 400 && code < 600 {
			return code, err.Error()
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return http.StatusGatewayTimeout, err.Error()
	}
	return http.StatusInternalServerError, err.Error()
}

// signalOf returns the signal that ended a process, or 0.
func signalOf(err error) int {
	var process interface{ Sys() any }
	if !errors.As(err, &process) {
		return 0
	}
	status, ok := process.Sys().(interface {
		Signaled() bool
		Signal() syscall.Signal
	})
	if !ok || !status.Signaled() {
		return 0
	}
	return int(status.Signal())
}

// asExit returns err as the type by which package remotecommand knows an exit
// code, or unchanged if it has none. As in a shell, the code of a process that a
// signal ended is 128 and the signal.
func asExit(err error) error {
	var (
		code    interface{ ExitCode() int }
		status  exec.ExitError
		exit    = -1
		message string
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &status):
		if status.Exited() {
			exit = status.ExitStatus()
		}
	case errors.As(err, &code):
		exit = code.ExitCode() // negative if a signal ended the process
	}
	if signal := signalOf(err); exit < 0 && signal > 0 {
		exit = 128 + signal
	}
	switch {
	case exit < 0:
		return err
	case exit == 0:
		return nil
	}
	if message = err.Error(); message == "" {
		message = "exit status " + strconv.Itoa(exit)
	}
	return exec.CodeExitError{Err: errors.New(message), Code: exit}
}

// guard calls f and returns a panic as an error.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
	}()
	return f()
}
