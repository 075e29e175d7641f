// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"

	"github.com/kubewright/kubewright/nodeapi"
)

// held are the commands that a round of BenchmarkStreamMemory holds open.
var held struct {
	sync.Mutex
	begun, release chan struct{}
}

// hold is a command that reads nothing until the round has ended.
func hold() {
	held.Lock()
	begun, release := held.begun, held.release
	held.Unlock()
	begun <- struct{}{}
	<-release
}

// BenchmarkStreamMemory measures the heap and the stacks that an open exec takes, with
// an idle client, and with one that sends 4 MiB to a command that reads nothing. The
// clients are bare TLS connections, which were open before.
func BenchmarkStreamMemory(b *testing.B) {
	for _, unread := range []int{0, 4 << 20} {
		b.Run(fmt.Sprintf("unread=%dKiB", unread>>10), func(b *testing.B) {
			sums, addresses := map[string]float64{}, map[string]string{}
			idle := runtime.NumGoroutine() + len(contenders) // between two rounds, with the listeners
			for name, handler := range servers(b) {
				server := httptest.NewTLSServer(handler)
				defer server.Close()
				addresses[name] = strings.TrimPrefix(server.URL, "https://")
				memory(b, addresses[name], 0)
				idle = max(idle, settle(idle))
			}
			rounds := 0
			for b.Loop() {
				for _, name := range contenders {
					sums[name] += memory(b, addresses[name], unread)
					idle = max(idle, settle(idle))
				}
				rounds++
			}
			for name, sum := range sums {
				b.ReportMetric(sum/float64(rounds)/1024, name+"-KiB/stream")
			}
		})
	}
}

// BenchmarkPodsMemory measures the heap and the stacks that a list of 100 pods of 100 KB
// takes while its client reads nothing. The pods themselves are there before.
func BenchmarkPodsMemory(b *testing.B) {
	pods := make([]*corev1.Pod, 100)
	for i := range pods {
		pods[i] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprint("pod-", i), Annotations: map[string]string{"large": strings.Repeat("x", 100_000)},
		}}
	}
	ours, err := nodeapi.New(nodeapi.Config{
		NodeName: "n1", Backend: backend{}, Pods: slices.Values(pods), Authenticator: anyUser, Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(),
	})
	if err != nil {
		b.Fatal(err)
	}
	theirs := vkapi.PodHandler(vkapi.PodHandlerConfig{
		GetPodsFromKubernetes: func(context.Context) ([]*corev1.Pod, error) { return pods, nil },
	}, false)
	sums, addresses := map[string]float64{}, map[string]string{}
	for name, handler := range map[string]http.Handler{"kubewright": ours, "virtual-kubelet": theirs} {
		server := httptest.NewTLSServer(handler)
		defer server.Close()
		addresses[name] = strings.TrimPrefix(server.URL, "https://")
		unreadLists(b, addresses[name])
	}
	rounds := 0
	for b.Loop() {
		for _, name := range contenders {
			sums[name] += unreadLists(b, addresses[name])
		}
		rounds++
	}
	for name, sum := range sums {
		b.ReportMetric(sum/float64(rounds)/1024, name+"-KiB/reader")
	}
}

// unreadLists returns the bytes that one of many lists takes that are not read.
func unreadLists(b *testing.B, address string) float64 {
	const clients = 20
	idle := runtime.NumGoroutine()
	all := make([]*tls.Conn, clients)
	for i := range all {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			b.Fatal(err)
		}
		_ = conn.NetConn().(*net.TCPConn).SetReadBuffer(4 << 10)
		all[i] = conn
	}
	before := heap()
	first := make([]byte, 1)
	for _, conn := range all {
		fmt.Fprint(conn, "GET /pods HTTP/1.1\r\nHost: node\r\n\r\n")
		if _, err := conn.Read(first); err != nil { // it has begun
			b.Fatal(err)
		}
	}
	for last := int64(0); ; { // until the buffers of the system are full
		time.Sleep(100 * time.Millisecond)
		now := heap()
		if now-last < 64<<10 && last-now < 64<<10 {
			break
		}
		last = now
	}
	took := float64(heap()-before) / clients
	for _, conn := range all {
		_ = conn.NetConn().Close() // TLS would say goodbye
	}
	settle(idle)
	return took
}

// memory returns the bytes that one of many streams takes.
func memory(b *testing.B, address string, unread int) float64 {
	const clients = 20
	type client struct {
		*tls.Conn
		in *bufio.Reader
	}
	held.Lock()
	held.begun, held.release = make(chan struct{}, clients), make(chan struct{})
	begun, release := held.begun, held.release
	held.Unlock()
	defer close(release)
	open, data := commandFrames(b), make([]byte, 8+32<<10)
	binary.BigEndian.PutUint32(data, 3) // the input
	binary.BigEndian.PutUint32(data[4:], 32<<10)
	all := make([]client, clients)
	for i := range all {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		all[i] = client{conn, bufio.NewReader(conn)}
	}
	before := heap()
	for _, c := range all {
		fmt.Fprint(c, "POST /exec/default/web/main?command=hold&input=1&output=1 HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n")
		resp, err := http.ReadResponse(c.in, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			b.Fatal(resp, err)
		}
		if _, err := c.Write(open); err != nil {
			b.Fatal(err)
		}
	}
	for range all {
		<-begun
	}
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			for sent := 0; sent < unread; sent += 32 << 10 {
				_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // a server may read no more
				if _, err := c.Write(data); err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(heap()-before) / clients
}

// settle waits until no more goroutines than these are left of a round: what they hold
// would be missing in the next one. It gives up after five seconds, for those that stay
// for ever, and returns how many there are.
func settle(goroutines int) int {
	for range 500 {
		if runtime.NumGoroutine() <= goroutines {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return runtime.NumGoroutine()
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one only empties pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// commandFrames returns the frames that open the streams of a command.
func commandFrames(b *testing.B) (frames []byte) {
	var block bytes.Buffer
	deflate := zlib.NewWriter(&block)
	for i, kind := range []string{"error", "stdin", "stdout"} {
		block.Reset()
		var headers []byte
		headers = binary.BigEndian.AppendUint32(headers, 1)
		for _, s := range []string{"streamtype", kind} {
			headers = append(binary.BigEndian.AppendUint32(headers, uint32(len(s))), s...)
		}
		if _, err := deflate.Write(headers); err != nil {
			b.Fatal(err)
		}
		if err := deflate.Flush(); err != nil {
			b.Fatal(err)
		}
		frames = binary.BigEndian.AppendUint32(frames, 1<<31|3<<16|1)
		frames = binary.BigEndian.AppendUint32(frames, uint32(10+block.Len()))
		frames = binary.BigEndian.AppendUint32(frames, uint32(2*i+1))
		frames = append(frames, make([]byte, 6)...)
		frames = append(frames, block.Bytes()...)
	}
	return frames
}
