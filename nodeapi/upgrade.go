// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	protocols "k8s.io/apimachinery/pkg/util/remotecommand"

	"github.com/kubewright/kubewright/nodeapi/internal/wire"
)

// FeatureWebSockets is the feature that a Node declares in status.declaredFeatures if it
// serves the WebSockets of current clients (KEP-4006). Without it the API server translates
// them to SPDY, and the node does not notice if a client is gone behind input that a command
// does not read. See nodestatus.DeclaredFeatures.
const FeatureWebSockets = "ExtendWebSocketsToKubelet"

// linger is the time for a client to close its connection after it was sent the end
// of all streams. A connection that is closed with input in its buffers may lose
// output.
const linger = time.Second

// The headers by which the version of a protocol on SPDY is negotiated.
const (
	protocolVersion  = "X-Stream-Protocol-Version"
	acceptedVersions = "X-Accepted-Stream-Protocol-Versions"
)

// upgradable returns an error if the connection can't become a stream.
func upgradable(r *http.Request) error {
	has := func(name, token string) bool {
		return strings.Contains(strings.ToLower(strings.Join(r.Header.Values(name), ",")), token)
	}
	switch {
	case r.ProtoMajor != 1:
		return badRequest("this endpoint upgrades the connection to SPDY or WebSocket, which needs HTTP/1.1, not %s", r.Proto)
	case !has("Connection", "upgrade"):
		return badRequest("this endpoint upgrades the connection to SPDY or WebSocket: the request must have the header Connection: Upgrade")
	case !has("Upgrade", "websocket") && !has("Upgrade", "spdy/3.1"):
		return badRequest("this endpoint upgrades the connection to SPDY or WebSocket: the header Upgrade must be SPDY/3.1 or websocket")
	}
	return nil
}

// upgradeSPDY takes over the connection of a request. It returns the first protocol
// of the client that is in supported. open is called as wire.SPDY says.
func upgradeSPDY(w http.ResponseWriter, r *http.Request, supported []string, waits wire.Waits, open func(protocol string) wire.OpenFunc) (*wire.Conn, error) {
	protocol, err := negotiate(r.Header.Values(protocolVersion), supported)
	if err != nil {
		for _, p := range supported {
			w.Header().Add(acceptedVersions, p)
		}
		return nil, err
	}
	h := w.Header()
	h.Set("Connection", "Upgrade")
	h.Set("Upgrade", "SPDY/3.1")
	h.Set(protocolVersion, protocol)
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	return wire.SPDY(conn, buffered.Reader, waits, open(protocol)), nil
}

// upgradeWebSocket takes over the connection of a request. It returns the first protocol
// of the client that is in supported, or none if the client has none.
func upgradeWebSocket(w http.ResponseWriter, r *http.Request, supported []string) (ws *websocket.Conn, protocol string, err error) {
	var header http.Header
	if offered := websocket.Subprotocols(r); len(offered) > 0 {
		if protocol, err = negotiate(offered, supported); err != nil {
			return nil, "", err
		}
		header = http.Header{"Sec-Websocket-Protocol": {protocol}}
	}
	ws, err = (&websocket.Upgrader{
		CheckOrigin: func(*http.Request) bool { return true }, // API servers pass on the Origin of their clients
		Error:       func(http.ResponseWriter, *http.Request, int, error) {},
	}).Upgrade(w, r, header)
	if err != nil {
		return nil, "", badRequest("the WebSocket can't be opened: %v", err)
	}
	return ws, protocol, nil
}

// formatOf returns the format of the messages of a protocol. A client without a protocol
// gets binary ones.
func formatOf(protocol string) wire.Format {
	switch {
	case protocol == protocols.StreamProtocolV5Name:
		return wire.Ended
	case strings.Contains(protocol, "base64"):
		return wire.Text
	default:
		return wire.Binary
	}
}

// negotiate returns the first offered protocol that is supported.
func negotiate(offered, supported []string) (string, error) {
	for list := range slices.Values(offered) {
		for one := range strings.SplitSeq(list, ",") {
			if one = strings.TrimSpace(one); slices.Contains(supported, one) {
				return one, nil
			}
		}
	}
	return "", &statusError{http.StatusForbidden, fmt.Sprintf("the node speaks none of the protocols that the client offers: %s; it speaks %s",
		abbreviated(strings.Join(offered, ", ")), strings.Join(supported, ", "))}
}
