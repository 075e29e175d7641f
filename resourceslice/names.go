// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

const (
	// orderDigits is the length of a page's order number, in hexadecimal, at
	// the start of its name: the scheduler tries slices by name.
	orderDigits = 8
	// orderSpacing leaves room between two pages for others; where it is used
	// up, order numbers get more digits.
	orderSpacing = 0x1000
	// maxPageName keeps names fit for label values.
	maxPageName = 63
)

// namer names new pages. The same page of the same pool gets the same name in
// every process, so that a create whose answer was lost is recognised when it
// is repeated.
type namer struct {
	id   PoolID
	stem string
	// taken has the names that can't be given: those of all slices that the
	// pool has now, others that turned out to be in use, and given ones.
	taken map[string]bool
}

func newNamer(id PoolID, nodeName string, taken map[string]bool) namer {
	stem := id.Driver
	if nodeName != "" {
		stem += "-" + nodeName
	}
	return namer{id: id, stem: strings.ToLower(stem), taken: taken}
}

// name returns the name of the page with an order number.
func (n namer) name(order string) string {
	for salt := 0; ; salt++ {
		if name := n.salted(order, salt); !n.taken[name] {
			n.taken[name] = true
			return name
		}
	}
}

func (n namer) salted(order string, salt int) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s\n%s\n%s\n%d", n.id.Driver, n.id.Name, order, salt)
	suffix := fmt.Sprintf("%08x", h.Sum32())
	stem := n.stem[:min(len(n.stem), max(0, maxPageName-len(order)-len(suffix)-2))]
	if stem = strings.Trim(stem, "-."); stem == "" {
		return order + "-" + suffix
	}
	return order + "-" + stem + "-" + suffix
}

// orderOf returns the order number that a name begins with, or "" where it has
// none: somebody else made the page.
func orderOf(name string) string {
	order, _, ok := strings.Cut(name, "-")
	if !ok || len(order) < orderDigits || strings.Trim(order, "0123456789abcdef") != "" {
		return ""
	}
	return order
}

// orderAfter returns an order number after the given one; "" is the start.
func orderAfter(order string) string {
	if order == "" {
		return fmt.Sprintf("%0*x", orderDigits, orderSpacing)
	}
	n, err := strconv.ParseUint(order[:orderDigits], 16, 32)
	if err != nil || n+orderSpacing >= 1<<(4*orderDigits) {
		return orderBetween(order, "")
	}
	return fmt.Sprintf("%0*x", orderDigits, n+orderSpacing)
}

// orderBetween returns an order number between a and b, where a may be "" for
// the start and b for the end. It has more digits than they have where there is no room.
func orderBetween(a, b string) string {
	if a == "" {
		a = strings.Repeat("0", orderDigits)
	}
	lo, errLo := strconv.ParseUint(a[:orderDigits], 16, 32)
	hi, errHi := uint64(1)<<(4*orderDigits), error(nil)
	if b != "" {
		hi, errHi = strconv.ParseUint(b[:orderDigits], 16, 32)
	}
	if errLo == nil && errHi == nil && hi-lo >= 2 && hi > lo {
		return fmt.Sprintf("%0*x", orderDigits, lo+(hi-lo)/2)
	}
	const digits = "0123456789abcdef"
	var order []byte
	for i := 0; ; i++ {
		lo, hi := 0, len(digits)
		if i < len(a) {
			lo = strings.IndexByte(digits, a[i])
		}
		if i < len(b) {
			hi = strings.IndexByte(digits, b[i])
		}
		if hi-lo >= 2 && i >= orderDigits {
			return string(append(order, digits[(lo+hi)/2]))
		}
		if hi > lo {
			b = "" // whatever follows this digit is below b
		}
		order = append(order, digits[lo])
	}
}
