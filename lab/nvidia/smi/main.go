// SPDX-License-Identifier: Apache-2.0

// Stand-in for nvidia-smi on the public NVML interface, for the lab's simulated driver. It prints what NVIDIA's prints for
// the options below, as far as documented, and says that it is simulated.
//
// Source: NVIDIA "nvidia-smi" manual page R580; NVIDIA "Multi-Instance GPU User Guide".
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Set by the build.
var version = "unknown"

// Exit codes of the manual page, "RETURN VALUE"; others are the NVML error's number.
const (
	exitBadArgument = 2
	exitNotFound    = 6
	exitNoDriver    = 9
	exitNoLibrary   = 12
	exitOther       = 255
)

// exit ends the program with a text that NVIDIA prints to standard output, where it prints nearly everything.
type exit struct {
	code int
	text string
}

func (e *exit) Error() string { return e.text }

func fail(code int, format string, args ...any) error {
	return &exit{code, fmt.Sprintf(format, args...)}
}

type options struct {
	id             string
	list           bool
	query          string
	format         string
	full           bool
	migMode        string
	persistence    string
	reset          bool
	version        bool
	errorOnWarning bool
}

func main() {
	err := run(os.Args[1:])
	if err == nil {
		return
	}
	var e *exit
	if !errors.As(err, &e) {
		e = &exit{exitOther, err.Error()}
	}
	if e.text != "" {
		fmt.Println(e.text)
	}
	os.Exit(min(e.code, exitOther))
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "mig" {
		o, err := parseMig(args[1:])
		if err != nil {
			return err
		}
		if err := open(); err != nil {
			return err
		}
		defer nvml.Shutdown()
		return o.run()
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.version {
		return printVersion()
	}
	if err := open(); err != nil {
		return err
	}
	defer nvml.Shutdown()
	switch {
	case o.list:
		return list(o)
	case o.query != "":
		return query(o)
	case o.migMode != "":
		return setMigMode(o)
	case o.persistence != "":
		return setPersistence(o)
	case o.reset:
		return reset(o)
	case o.full:
		return full(o)
	}
	return table(o)
}

const usage = `NVIDIA System Management Interface (simulated) -- v%s

nvidia-smi [-L] [-q] [-i ID] [--query-gpu=FIELDS --format=csv[,noheader][,nounits]]
           [-mig 0|1] [-pm 0|1] [-r|--gpu-reset] [--error-on-warning] [--version]
nvidia-smi mig [-i ID] [-gi ID] [-ci ID] -lgip|-lgipp|-lgi|-lci|-lcip|-cgi PROFILES [-C]|-cci [PROFILES]|-dci|-dgi
`

func parse(args []string) (*options, error) {
	o := &options{}
	for i := 0; i < len(args); i++ {
		name, value, inline := strings.Cut(args[i], "=")
		next := func() (string, error) {
			if inline {
				return value, nil
			}
			i++
			if i >= len(args) {
				return "", fail(exitBadArgument, "Option %q is missing its value. Please run 'nvidia-smi -h' for help.", name)
			}
			return args[i], nil
		}
		var err error
		switch name {
		case "-L", "--list-gpus":
			o.list = true
		case "-q", "--query":
			o.full = true
		case "-i", "--id":
			o.id, err = next()
		case "--query-gpu":
			o.query, err = next()
		case "--format":
			o.format, err = next()
		case "-mig", "--multi-instance-gpu":
			o.migMode, err = next()
		case "-pm", "--persistence-mode":
			o.persistence, err = next()
		case "-r", "--gpu-reset":
			o.reset = true
		case "--error-on-warning":
			o.errorOnWarning = true
		case "--version":
			o.version = true
		case "-h", "--help":
			return nil, fail(0, usage, version)
		default:
			return nil, fail(exitBadArgument, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
		}
		if err != nil {
			return nil, err
		}
	}
	return o, nil
}

func open() error {
	switch rc := nvml.Init(); rc {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fail(exitNoLibrary, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. "+
			"Please make sure that the NVIDIA Display Driver is properly installed and present in your system.\n"+
			"Please also try adding directory that contains libnvidia-ml.so to your system PATH.")
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fail(exitNoDriver, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "+
			"Make sure that the latest NVIDIA driver is installed and running.\n")
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fail(int(rc), "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: %s",
			majorMinor(version))
	default:
		return fail(int(rc), "Failed to initialize NVML: %v", nvml.ErrorString(rc))
	}
}

func majorMinor(v string) string {
	parts := strings.SplitN(v, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// gpu is a device with what almost every message names.
type gpu struct {
	nvml.Device
	index int
	bus   string
}

// gpus are those that -i chose: an index, a UUID or a PCI address, or a list of them; all of them without -i.
func gpus(id string) ([]gpu, error) {
	count, rc := nvml.DeviceGetCount()
	if rc != nvml.SUCCESS {
		return nil, fail(int(rc), "Unable to determine the number of devices: %v", nvml.ErrorString(rc))
	}
	var chosen []gpu
	for i := range count {
		device, rc := nvml.DeviceGetHandleByIndex(i)
		g := gpu{device, i, address(i)}
		uuid := ""
		if rc == nvml.SUCCESS {
			pci, _ := device.GetPciInfo()
			g.bus = text(pci.BusId[:])
			uuid, _ = device.GetUUID()
		}
		if !wanted(id, g, uuid) {
			continue
		}
		if rc != nvml.SUCCESS {
			return nil, lost(g, rc)
		}
		chosen = append(chosen, g)
	}
	if len(chosen) == 0 {
		return nil, fail(exitNotFound, "No devices were found")
	}
	return chosen, nil
}

func lost(g gpu, rc nvml.Return) error {
	hint := ""
	if rc == nvml.ERROR_GPU_IS_LOST {
		hint = ".  Reboot the system to recover this GPU"
	}
	return fail(int(rc), "Unable to determine the device handle for GPU%d: %s: %v%s", g.index, g.bus, nvml.ErrorString(rc), hint)
}

// address is where a GPU is that NVML gives no handle for; NVML numbers them by address.
func address(index int) string {
	entries, err := os.ReadDir("/proc/driver/nvidia/gpus") // sorted by name
	if err != nil || index >= len(entries) {
		return "unknown"
	}
	return "0000" + strings.ToUpper(entries[index].Name())
}

func wanted(id string, g gpu, uuid string) bool {
	if id == "" {
		return true
	}
	for _, one := range strings.Split(id, ",") {
		one = strings.TrimSpace(one)
		short := strings.TrimPrefix(strings.ToUpper(g.bus), "0000")
		if one == fmt.Sprint(g.index) || strings.EqualFold(one, uuid) || strings.EqualFold(one, g.bus) || strings.EqualFold(one, short) {
			return true
		}
	}
	return false
}

func text(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

func printVersion() error {
	driver, cuda, library := "N/A", "N/A", "N/A"
	if nvml.Init() == nvml.SUCCESS {
		defer nvml.Shutdown()
		driver, _ = nvml.SystemGetDriverVersion()
		n, _ := nvml.SystemGetCudaDriverVersion()
		cuda = cudaVersion(n)
		library = majorMinor(version)
	}
	fmt.Printf("NVIDIA-SMI version  : %s (simulated)\n", version)
	fmt.Printf("NVML version        : %s\n", library)
	fmt.Printf("DRIVER version      : %s\n", driver)
	fmt.Printf("CUDA Version        : %s\n", cuda)
	return nil
}

func cudaVersion(n int) string {
	return fmt.Sprintf("%d.%d", n/1000, n%1000/10)
}
