package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"
)

// Xids that tell of a fault in an application, not in the GPU.
// Source: NVIDIA/k8s-device-plugin v0.20.0, internal/rm/health.go (read 2026-11-30).
var applicationXids = []uint64{13, 31, 43, 45, 68, 109}

const (
	// Short: the plugin can only stop, or register again, between two waits.
	eventWaitMs = 1000
	lookEvery   = 5 * time.Second
	anyInstance = 0xFFFFFFFF
)

// ignoredXids reads DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS; all is true if no Xid
// counts. What is enabled by name counts even so.
func ignoredXids() (ignored map[uint64]bool, all bool) {
	ignored = map[uint64]bool{}
	for _, xid := range applicationXids {
		ignored[xid] = true
	}
	for _, word := range strings.Split(strings.ToLower(os.Getenv("DP_DISABLE_HEALTHCHECKS")), ",") {
		word = strings.TrimSpace(word)
		if word == "all" || word == "xids" {
			all = true
		} else if xid, err := strconv.ParseUint(word, 10, 64); err == nil {
			ignored[xid] = true
		}
	}
	for _, word := range strings.Split(strings.ToLower(os.Getenv("DP_ENABLE_HEALTHCHECKS")), ",") {
		if xid, err := strconv.ParseUint(strings.TrimSpace(word), 10, 64); err == nil {
			ignored[xid] = false
		}
	}
	return ignored, all
}

func counts(xid uint64, ignored map[uint64]bool, all bool) bool {
	ignore, named := ignored[xid]
	if named {
		return !ignore
	}
	return !all
}

// watchHealth reports devices that have become unhealthy until ctx ends. A device never recovers:
// only a restart of the plugin looks again, as with upstream.
func watchHealth(ctx context.Context, lib nvml.Interface, devices []*device, lost func(*device, string)) {
	ignored, all := ignoredXids()
	byParent := map[string][]*device{}
	for _, d := range devices {
		byParent[d.parent] = append(byParent[d.parent], d)
	}
	events := subscribe(lib, byParent, lost)
	looked := time.Time{}
	for ctx.Err() == nil {
		if events == nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(eventWaitMs * time.Millisecond):
			}
		} else {
			event, ret := events.Wait(eventWaitMs)
			switch {
			case ret == nvml.SUCCESS && event.EventType == nvml.EventTypeXidCriticalError:
				uuid, ret := event.Device.GetUUID()
				if ret != nvml.SUCCESS {
					klog.Warningf("Xid %d on a GPU without a name: all devices are marked unhealthy", event.EventData)
					for _, d := range devices {
						lost(d, "an Xid on an unknown GPU")
					}
					break
				}
				if !counts(event.EventData, ignored, all) {
					klog.Infof("Xid %d on %s is ignored", event.EventData, uuid)
					break
				}
				for _, d := range byParent[uuid] {
					if d.gi >= 0 && event.GpuInstanceId != anyInstance &&
						(uint32(d.gi) != event.GpuInstanceId || uint32(d.ci) != event.ComputeInstanceId) {
						continue
					}
					lost(d, "Xid "+strconv.FormatUint(event.EventData, 10))
				}
			case ret != nvml.SUCCESS && ret != nvml.ERROR_TIMEOUT:
				klog.Warningf("waiting for NVML events: %s", nvml.ErrorString(ret))
				time.Sleep(eventWaitMs * time.Millisecond)
			}
		}
		// A GPU that has left the bus may send no event at all.
		if time.Since(looked) < lookEvery {
			continue
		}
		looked = time.Now()
		for uuid, children := range byParent {
			if reason := gone(lib, uuid); reason != "" {
				for _, d := range children {
					lost(d, reason)
				}
			}
		}
	}
	if events != nil {
		events.Free()
	}
}

func subscribe(lib nvml.Interface, byParent map[string][]*device, lost func(*device, string)) nvml.EventSet {
	events, ret := lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		klog.Warningf("no NVML events (%s): only lost GPUs are noticed", nvml.ErrorString(ret))
		return nil
	}
	for uuid, children := range byParent {
		gpu, ret := lib.DeviceGetHandleByUUID(uuid)
		if ret == nvml.SUCCESS {
			ret = gpu.RegisterEvents(nvml.EventTypeXidCriticalError, events)
		}
		if ret == nvml.ERROR_NOT_SUPPORTED {
			klog.Warningf("%s: no Xid events; only its loss is noticed", uuid)
		} else if ret != nvml.SUCCESS {
			for _, d := range children {
				lost(d, nvml.ErrorString(ret))
			}
		}
	}
	return events
}

// gone tells why a GPU can no longer be used; "" if it can.
func gone(lib nvml.Interface, uuid string) string {
	gpu, ret := lib.DeviceGetHandleByUUID(uuid)
	if ret == nvml.SUCCESS {
		_, ret = gpu.GetMemoryInfo()
	}
	switch ret {
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED:
		return nvml.ErrorString(ret)
	default:
		return ""
	}
}
