// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// TestATenantWithExecIsNoWeaponAgainstTheNode: one pods/exec whose input is not read
// took hundreds of MiB of the process that holds the node's lease.
func TestATenantWithExecIsNoWeaponAgainstTheNode(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	r := newKubeletRig(t, cluster, "hostile-node")
	r.create("quiet", corev1.RestartPolicyNever, "sleep 1000", podRuns)
	before := residentMiB(t, r.program.cmd.Process.Pid)
	c := dialExec(t, cluster.AdminConfig(), "/api/v1/namespaces/"+r.namespace+"/pods/quiet/exec?command=sleep&command=1000&stdin=true&stdout=true")
	for _, kind := range []string{corev1.StreamTypeError, corev1.StreamTypeStdout, corev1.StreamTypeStdin} {
		c.open(kind)
	}
	const stdin, frame = 5, 8 << 20
	data := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, stdin), frame)
	data = append(data, make([]byte, frame)...)
	sent := 0
	for sent < 1<<30 {
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		n, err := c.Conn.Write(data)
		if sent += n; err != nil {
			break // nobody takes it
		}
	}
	if grown := residentMiB(t, r.program.cmd.Process.Pid) - before; grown > 64 || sent >= 1<<30 {
		t.Errorf("the kubelet has grown by %d MiB after %d MiB of input that is not read", grown, sent>>20)
	}
	if out, complaint, status := r.kubectl(nil, "exec", "quiet", "--", "echo", "served"); out != "served\n" || status != 0 {
		t.Errorf("another client: %d %q %q", status, out, complaint)
	}
	// Streams that were not asked for end the connection.
	c = dialExec(t, cluster.AdminConfig(), "/api/v1/namespaces/"+r.namespace+"/pods/quiet/exec?command=sleep&command=1000&stdout=true")
	for range 3 {
		c.open(corev1.StreamTypeStdout)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection with streams that were not asked for is kept")
	}
}

// spdyClient is a client that breaks rules.
type spdyClient struct {
	net.Conn
	*testing.T
	next    uint32
	headers bytes.Buffer
	zlib    *zlib.Writer // the compression of headers, without the dictionary
}

// dialExec upgrades a connection to the API server, which passes on what it carries.
func dialExec(t *testing.T, cfg *rest.Config, path string) *spdyClient {
	t.Helper()
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig.NextProtos = []string{"http/1.1"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(cfg.Host, "https://"), tlsConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: kubernetes\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n", path)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(err, resp)
	}
	c := &spdyClient{Conn: conn, T: t, next: 1}
	c.zlib = zlib.NewWriter(&c.headers)
	return c
}

// open sends the frame that opens a stream.
func (c *spdyClient) open(kind string) {
	c.Helper()
	const name = "streamtype"
	block := binary.BigEndian.AppendUint32(nil, 1)
	block = append(binary.BigEndian.AppendUint32(block, uint32(len(name))), name...)
	block = append(binary.BigEndian.AppendUint32(block, uint32(len(kind))), kind...)
	c.headers.Reset()
	if _, err := c.zlib.Write(block); err != nil {
		c.Fatal(err)
	}
	if err := c.zlib.Flush(); err != nil {
		c.Fatal(err)
	}
	frame := binary.BigEndian.AppendUint32([]byte{0x80, 3, 0, 1}, uint32(10+c.headers.Len()))
	frame = binary.BigEndian.AppendUint32(frame, c.next)
	frame = append(append(frame, make([]byte, 6)...), c.headers.Bytes()...)
	c.next += 2
	if _, err := c.Conn.Write(frame); err != nil {
		c.Log(err) // the connection has ended
	}
}

// residentMiB returns the memory of a process.
func residentMiB(t *testing.T, pid int) (n int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n >> 10
}
