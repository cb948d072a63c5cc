package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resourceGPU       = "nvidia.com/gpu"
	resourceMigPrefix = "nvidia.com/mig-"
	// What separates a MIG device's profile from the model in the name that NVML gives it.
	migNameSeparator = " MIG "
)

// device is one GPU or MIG device as the kubelet is told of it.
type device struct {
	uuid   string
	index  string // "0", or "0:1" for a MIG device
	parent string // UUID of the GPU: the device's own for a whole GPU
	gi, ci int    // MIG instance ids, -1 for a whole GPU
	minor  int
	numa   int // -1 if the platform does not say
	paths  []string
}

// resources maps a resource's name to its devices.
type resources map[string][]*device

func (r resources) names() []string {
	names := make([]string, 0, len(r))
	for name := range r {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

type discovery struct {
	lib      nvml.Interface
	strategy string
	// Roots of /sys and /proc: others in tests.
	sysfs, procfs string
}

func failed(what string, ret nvml.Return) error {
	return fmt.Errorf("NVML: want %s, have %s; look at nvidia-smi on the host", what, nvml.ErrorString(ret))
}

// find lists what the node has, named as the MIG strategy asks.
//
// The rules are upstream's: with single and mixed, a GPU in MIG mode without MIG devices is an
// error; single wants all GPUs in MIG mode or none, and one kind of MIG device.
// Source: NVIDIA/k8s-device-plugin v0.20.0, internal/rm/device_map.go (read 2026-11-30).
func (d *discovery) find() (resources, error) {
	count, ret := d.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, failed("the number of GPUs", ret)
	}
	found := resources{}
	kinds := map[string]bool{}
	whole := 0
	for i := range count {
		gpu, ret := d.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return nil, failed(fmt.Sprintf("a handle of GPU %d", i), ret)
		}
		full, err := d.gpu(gpu, i)
		if err != nil {
			return nil, err
		}
		mode, _, ret := gpu.GetMigMode()
		if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			return nil, failed(fmt.Sprintf("the MIG mode of GPU %d", i), ret)
		}
		inMig := ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
		if d.strategy == migNone || !inMig {
			found[resourceGPU] = append(found[resourceGPU], full)
			whole++
			continue
		}
		slices, err := d.migDevices(gpu, full)
		if err != nil {
			return nil, err
		}
		for _, slice := range slices {
			kinds[slice.profile] = true
			name := resourceGPU
			if d.strategy == migMixed {
				name = resourceMigPrefix + strings.ReplaceAll(slice.profile, "+", ".")
			}
			found[name] = append(found[name], slice.device)
		}
	}
	if d.strategy == migSingle && len(kinds) > 0 {
		if whole > 0 {
			return nil, fmt.Errorf("MIG: want all GPUs in MIG mode or none with strategy single, "+
				"have %d of %d not; repartition, or use mixed", whole, count)
		}
		if len(kinds) > 1 {
			return nil, fmt.Errorf("MIG: want one profile with strategy single, have %d; "+
				"repartition, or use mixed", len(kinds))
		}
	}
	return found, nil
}

func (d *discovery) gpu(gpu nvml.Device, index int) (*device, error) {
	uuid, ret := gpu.GetUUID()
	if ret != nvml.SUCCESS {
		return nil, failed(fmt.Sprintf("the UUID of GPU %d", index), ret)
	}
	minor, ret := gpu.GetMinorNumber()
	if ret != nvml.SUCCESS {
		return nil, failed(fmt.Sprintf("the minor number of GPU %d", index), ret)
	}
	pci, ret := gpu.GetPciInfo()
	if ret != nvml.SUCCESS {
		return nil, failed(fmt.Sprintf("the PCI address of GPU %d", index), ret)
	}
	numa, err := d.numaNode(busID(pci))
	if err != nil {
		return nil, err
	}
	return &device{
		uuid: uuid, index: strconv.Itoa(index), parent: uuid, gi: -1, ci: -1, minor: minor, numa: numa,
		paths: []string{fmt.Sprintf("/dev/nvidia%d", minor)},
	}, nil
}

// busID is the address as sysfs spells it: NVML gives the domain eight digits and upper case.
func busID(pci nvml.PciInfo) string {
	var text []byte
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	id := strings.ToLower(string(text))
	return strings.TrimPrefix(id, "0000")
}

func (d *discovery) numaNode(bus string) (int, error) {
	text, err := os.ReadFile(filepath.Join(d.sysfs, "bus/pci/devices", bus, "numa_node"))
	if errors.Is(err, os.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("PCI: want the NUMA node of %s, have %w", bus, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

type migDevice struct {
	*device
	profile string
}

func (d *discovery) migDevices(gpu nvml.Device, full *device) ([]migDevice, error) {
	limit, ret := gpu.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, failed("the limit of MIG devices of GPU "+full.index, ret)
	}
	caps, err := d.capabilities()
	if err != nil {
		return nil, err
	}
	var found []migDevice
	for i := range limit {
		mig, ret := gpu.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		where := fmt.Sprintf("MIG device %s:%d", full.index, i)
		if ret != nvml.SUCCESS {
			return nil, failed("a handle of "+where, ret)
		}
		uuid, ret := mig.GetUUID()
		if ret != nvml.SUCCESS {
			return nil, failed("the UUID of "+where, ret)
		}
		name, ret := mig.GetName()
		if ret != nvml.SUCCESS {
			return nil, failed("the name of "+where, ret)
		}
		_, profile, ok := strings.Cut(name, migNameSeparator)
		if !ok {
			return nil, fmt.Errorf("NVML: want a profile in the name of %s, have %q", where, name)
		}
		gi, ret := mig.GetGpuInstanceId()
		if ret != nvml.SUCCESS {
			return nil, failed("the GPU instance of "+where, ret)
		}
		ci, ret := mig.GetComputeInstanceId()
		if ret != nvml.SUCCESS {
			return nil, failed("the compute instance of "+where, ret)
		}
		slice := &device{
			uuid: uuid, index: fmt.Sprintf("%s:%d", full.index, i), parent: full.uuid,
			gi: gi, ci: ci, minor: full.minor, numa: full.numa,
			paths: append([]string{}, full.paths...),
		}
		for _, entry := range []string{
			fmt.Sprintf("gpu%d/gi%d/access", full.minor, gi),
			fmt.Sprintf("gpu%d/gi%d/ci%d/access", full.minor, gi, ci),
		} {
			if minor, ok := caps[entry]; ok {
				slice.paths = append(slice.paths, "/dev/nvidia-caps/nvidia-cap"+minor)
			}
		}
		found = append(found, migDevice{slice, profile})
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("MIG: want MIG devices on GPU %s, which is in MIG mode, have 0; "+
			"create instances, or leave MIG mode", full.index)
	}
	return found, nil
}

// capabilities are the minor numbers of the files that give access to a MIG instance.
// Source: NVIDIA MIG User Guide, "Device Nodes and Capabilities" (read 2026-11-30).
func (d *discovery) capabilities() (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join(d.procfs, "driver/nvidia-caps/mig-minors"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("MIG: want the capability minors, have %w", err)
	}
	caps := map[string]string{}
	for _, line := range strings.Split(string(text), "\n") {
		if name, minor, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			caps[name] = minor
		}
	}
	return caps, nil
}

// advertised is what ListAndWatch sends; with replicas each device appears several times, as
// "<uuid>::<n>".
func advertised(devices []*device, replicas int, unhealthy map[string]bool) []*pluginapi.Device {
	var list []*pluginapi.Device
	for _, d := range devices {
		health := pluginapi.Healthy
		if unhealthy[d.uuid] {
			health = pluginapi.Unhealthy
		}
		var topology *pluginapi.TopologyInfo
		if d.numa >= 0 {
			topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(d.numa)}}}
		}
		for n := range replicas {
			id := d.uuid
			if replicas > 1 {
				id = fmt.Sprintf("%s%s%d", d.uuid, replicaSeparator, n)
			}
			list = append(list, &pluginapi.Device{ID: id, Health: health, Topology: topology})
		}
	}
	return list
}
