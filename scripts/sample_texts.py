"""What the sample documents say. The machine HX-200, its maker and both rule books are invented for Pagegate.

A document is a tuple of pages. A page is a tuple of blocks, blank where it has none, or a `Scan`. A block is
a heading ("# …"), a paragraph, a table (rows of cells, the first row is its head) or a `Drawing`.
"""

from __future__ import annotations

from dataclasses import dataclass

Rows = tuple[tuple[str, ...], ...]
Line = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Millimetres, origin at the lower left: rectangles and measured lines as x0, y0, x1, y1, and labels."""

    outlines: tuple[Line, ...]
    labels: tuple[tuple[float, float, str], ...]
    dimensions: tuple[tuple[Line, str], ...]


Block = str | Rows | Drawing


@dataclass(frozen=True)
class Scan:
    """A page that is only there as the picture of a printed page, with no text behind it."""

    blocks: tuple[Block, ...]


Page = tuple[Block, ...] | Scan

MANUAL_FRONT_MATTER = 3  # pages labelled i, ii, iii; the next is 1

MANUAL: tuple[Page, ...] = (
    (
        "# HX-200",
        "# 卧式带锯床  使用说明书",
        "# Horizontal Band Saw  Operating Manual",
        "适用机型：HX-200 与 HX-200A（自动送料）。原版说明书，第 3 版。",
        "For models HX-200 and HX-200A (automatic feed). Original instructions, third edition.",
        "请在首次开机之前通读本说明书，并把它保存在机床旁边。",
        "Read this manual before the first start and keep it beside the machine.",
    ),
    (
        "# 目录  Contents",
        (
            ("章 Section", "标题 Title", "页 Page"),
            ("", "安全须知  Safety", "iii"),
            ("1", "技术参数  Technical data", "1"),
            ("2", "外形与地基  Dimensions and foundation", "2"),
            ("3", "电气连接  Electrical connection", "3"),
            ("4", "保养周期  Maintenance intervals", "4"),
            ("5", "润滑  Lubrication", "5"),
            ("6", "拧紧力矩  Tightening torques", "6"),
            ("7", "故障代码  Fault codes", "7"),
            ("", "出厂验收记录  Acceptance record", "9"),
        ),
    ),
    (
        "# 安全须知  Safety",
        "只有经过培训、年满十八周岁的人员才可操作本机。操作时必须佩戴护目镜和听力防护用品；锯带运转时严禁戴手套。",
        "Only trained persons of at least eighteen years may operate the saw. Wear safety glasses and "
        "hearing protection; never wear gloves while the blade runs.",
        "更换锯带之前，先关闭主开关 Q1 并上锁挂牌，等待锯带完全停止。更换锯带时必须戴防割手套。",
        "Before changing the blade, switch off main switch Q1, lock and tag it, and wait until the blade has "
        "stopped. Wear cut-resistant gloves for the change itself.",
        "按下急停按钮后，锯带在 4 秒之内停止，锯架保持在原位。松开急停按钮不会使机床重新启动。",
        "After an emergency stop the blade stands still within 4 seconds and the bow stays where it is. "
        "Releasing the button does not restart the machine.",
        "切削镁合金有着火危险：本机不得用来切削镁合金。",
        "Magnesium alloys can catch fire: they must not be cut on this machine.",
    ),
    (
        "# 1 技术参数  Technical data",
        (
            ("参数 Parameter", "数值 Value", "单位 Unit"),
            ("圆料切削能力 Round capacity at 90°", "200", "mm"),
            ("圆料切削能力 Round capacity at 45°", "140", "mm"),
            ("方料切削能力 Rectangular capacity at 90°", "240 × 180", "mm"),
            ("锯带规格 Blade size", "2460 × 27 × 0.9", "mm"),
            ("锯带速度 Blade speed, stepless", "20 – 85", "m/min"),
            ("锯带张紧力 Blade tension", "180", "N/mm²"),
            ("主电动机功率 Main motor power", "1.5", "kW"),
            ("液压泵电动机 Hydraulic pump motor", "0.37", "kW"),
            ("液压系统压力 Hydraulic pressure", "3.5", "MPa"),
            ("冷却液箱容积 Coolant tank", "28", "L"),
            ("液压油箱容积 Hydraulic oil tank", "12", "L"),
            ("机床质量 Machine mass", "430", "kg"),
            ("工作环境温度 Ambient temperature", "5 – 40", "°C"),
        ),
        "切削碳素结构钢时推荐锯带速度 60 m/min，切削不锈钢时推荐 30 m/min，切削铝合金时用最高速度。",
        "Recommended blade speed: 60 m/min for carbon steel, 30 m/min for stainless steel, the highest speed "
        "for aluminium.",
    ),
    (
        "# 2 外形与地基  Dimensions and foundation",
        "主视图，尺寸单位为毫米。四个地脚螺栓为 M12 × 160，混凝土厚度不小于 200 mm。",
        "Front view, all dimensions in millimetres. Four foundation bolts M12 × 160 in concrete of at least 200 mm.",
        Drawing(
            outlines=(
                (100, 0, 260, 90),
                (1240, 0, 1400, 90),
                (0, 90, 1500, 620),
                (120, 700, 1380, 980),
                (560, 620, 820, 700),
                (1080, 980, 1380, 1180),
            ),
            labels=(
                (600, 330, "床身 Base"),
                (560, 830, "锯架 Saw bow"),
                (600, 645, "虎钳 Vice"),
                (1105, 1050, "电机 Motor"),
                (20, 20, "M12"),
            ),
            dimensions=(
                ((0, -120, 1500, -120), "1500"),
                ((180, -260, 1320, -260), "1140 (M12)"),
                ((1640, 0, 1640, 1180), "1180"),
                ((1520, 0, 1520, 620), "620"),
                ((560, 740, 820, 740), "260"),
            ),
        ),
        "机床四周至少留出 800 mm 的通道，送料一侧留出 2500 mm。",
        "Leave a passage of at least 800 mm around the machine and 2500 mm on the feed side.",
    ),
    (
        "# 3 电气连接  Electrical connection",
        "电源为三相五线制 400 V、50 Hz，总功率 2.1 kW。电源侧必须装 16 A 的 C 型断路器；电源线截面积不小于 2.5 mm²。",
        "Supply: three phases with neutral and earth, 400 V, 50 Hz, connected load 2.1 kW. Protect the "
        "supply with a 16 A circuit breaker of type C; the cable needs at least 2.5 mm² per conductor.",
        (
            ("端子 Terminal", "导线 Conductor", "颜色 Colour"),
            ("X1:1", "L1", "棕 brown"),
            ("X1:2", "L2", "黑 black"),
            ("X1:3", "L3", "灰 grey"),
            ("X1:4", "N", "浅蓝 light blue"),
            ("X1:5", "PE", "黄绿 green-yellow"),
        ),
        "接线后点动主电动机，检查锯带运转方向。方向相反时，对调端子 X1:1 与 X1:2 的导线。保护接地电阻不得大于 4 Ω。",
        "After connecting, jog the main motor and check the direction of the blade. If it runs backwards, "
        "exchange the conductors at X1:1 and X1:2. The earth resistance must not exceed 4 Ω.",
    ),
    (
        "# 4 保养周期  Maintenance intervals",
        (
            ("部位 Part", "周期 Interval", "工作内容 Work"),
            ("切屑刷 Chip brush", "每班 each shift", "清理，检查与锯齿的接触 clean, check contact"),
            ("导向块 Blade guides", "每 40 h", "检查间隙 0.05 mm check the gap"),
            ("冷却液 Coolant", "每 150 h", "更换，清洗水箱 replace, rinse the tank"),
            ("传动带 Drive belt", "每 500 h", "检查张力，下垂 8 mm check tension, sag 8 mm"),
            ("液压滤芯 Hydraulic filter", "每 1000 h", "更换 replace, part HX2-4417"),
            ("减速箱油 Gearbox oil", "每 2500 h", "更换 replace, 0.9 L"),
            ("急停按钮 Emergency stop", "每月 monthly", "功能试验 function test"),
        ),
        "切屑刷磨损超过 5 mm 时更换。所有保养工作都要写入保养记录本。",
        "Replace the chip brush when it has worn by more than 5 mm. Enter all maintenance in the log book.",
    ),
    (
        "# 5 润滑  Lubrication",
        "液压油使用 L-HM 46 抗磨液压油。新机床运行 300 小时后第一次换油，以后每 2000 小时换一次。"
        "油位应在油标的两条刻线之间。",
        "Use hydraulic oil HLP 46. Change it for the first time after 300 hours, then every 2000 hours. "
        "Keep the level between the two marks of the sight glass.",
        "减速箱使用 CLP 220 齿轮油。锯架转轴每周用 2 号锂基润滑脂加注一次，每次压注 3 下。",
        "The gearbox takes CLP 220 gear oil. Grease the pivot of the saw bow once a week with lithium grease "
        "NLGI 2, three strokes each time.",
        "冷却液为 8 % 的乳化液，用折光仪检查浓度。不同牌号的油不得混用。",
        "The coolant is an emulsion of 8 %, checked with a refractometer. Never mix oils of different brands.",
    ),
    (
        "# 6 拧紧力矩  Tightening torques",
        (
            ("连接 Joint", "螺纹 Thread", "力矩 Torque", "单位 Unit"),
            ("地脚螺栓 Foundation bolts", "M12", "70", "N·m"),
            ("从动轮轴承盖 Idler wheel cover", "M8", "23", "N·m"),
            ("驱动轮 Drive wheel hub", "M16", "195", "N·m"),
            ("油缸缸盖 Cylinder head", "M10", "48", "N·m"),
            ("锯带导向臂 Blade guide arm", "M14", "120", "N·m"),
            ("虎钳钳口 Vice jaw", "M6", "9.5", "N·m"),
        ),
        "力矩适用于 8.8 级、涂油的螺栓。驱动轮螺栓运行 50 小时后再拧紧一次。",
        "The torques are for oiled bolts of class 8.8. Tighten the drive wheel bolts again after 50 hours.",
    ),
    (
        "# 7 故障代码  Fault codes",
        (
            ("代码", "原因 Cause", "措施 Remedy"),
            ("E01", "急停按下 Emergency stop pressed", "松开并复位 release, then reset"),
            ("E02", "防护罩打开 Guard open", "关闭防护罩，检查开关 S4 close, check S4"),
            ("E03", "锯带断裂 Blade broken", "更换锯带 replace the blade"),
            ("E04", "主电动机过载 Main motor overload", "降低进给，等 10 分钟 reduce feed, wait 10 min"),
            ("E05", "液压压力不足 Hydraulic pressure low", "检查油位和滤芯 check oil level and filter"),
            ("E06", "冷却液不足 Coolant low", "加注冷却液 top up the coolant"),
            ("E07", "变频器过热 Inverter too hot", "清洁风扇 F2 的滤网 clean the mat of fan F2"),
            ("E08", "相序错误 Wrong phase sequence", "对调两相 exchange two phases"),
        ),
        "故障消除后按“复位”键 2 秒。同一故障一天之内出现三次，应通知服务部门。",
        "Press Reset for 2 seconds when the cause is gone. Call the service when a fault comes three times a day.",
    ),
    (),
    Scan(
        (
            "# 出厂验收记录  Acceptance record",
            "机床编号 Serial number: HX200-24-0317",
            (
                ("检验项目 Test", "允许值 Limit", "实测值 Measured"),
                ("切口垂直度 Squareness of the cut", "0.20 mm", "0.13 mm"),
                ("锯带轮径向跳动 Wheel run-out", "0.10 mm", "0.06 mm"),
                ("空载噪声 Noise, no load", "78 dB(A)", "74 dB(A)"),
                ("绝缘电阻 Insulation resistance", "1 MΩ", "52 MΩ"),
                ("试切时间 Test cut, steel 45, 100 mm", "180 s", "147 s"),
            ),
            "结论：合格。检验员：林晓东",
            "Result: passed. Inspector: Lin Xiaodong",
        )
    ),
)

POLICY: tuple[Page, ...] = (
    (
        "# Lockout and Tagout Policy",
        "# 1 Purpose",
        "This policy protects people who work on machines from energy that is released without warning. It "
        "applies to every workshop of the company and to contractors.",
        "# 2 Definitions",
        "2.1 An energy source is anything that can move, heat, shock or cut: electricity, hydraulic or "
        "pneumatic pressure, springs, raised loads and hot surfaces.",
        "2.2 An authorised person has passed the lockout course, which is repeated every 24 months.",
        "2.3 An affected person works near a locked machine but does not lock it.",
    ),
    (
        "# 3 Procedure",
        "3.1 Tell all affected persons, stop the machine in the usual way and open every isolating device.",
        "3.2 Each authorised person fixes a lock and a tag of their own. Locks are red, are opened by a "
        "single key, and the key stays with its owner.",
        "3.3 Release what is stored: lower raised loads, drain pressure, and wait 5 minutes for the "
        "capacitors of drives to discharge.",
        "3.4 Prove that the machine is dead: try to start it, then measure the voltage with a tester that "
        "was checked just before and is checked again just after.",
        "# 4 Removal of a lock",
        "4.1 A lock is removed by the person who fixed it.",
        "4.2 If that person has left the site, only the shift supervisor may remove the lock, after a call "
        "to the owner and a search of the machine with a second witness.",
    ),
    (
        "# 5 Records and audits",
        "5.1 Every lockout is entered in the register: machine, names, time on, time off. The register is "
        "kept for five years.",
        "5.2 The safety officer observes one lockout per workshop each quarter and reports to the management.",
        "# 6 Breaches",
        "6.1 Working on a machine without a lock of one's own is a serious breach and ends the work at once.",
        "6.2 A near miss is reported within one working day on form SF-12.",
    ),
)

ELECTRICAL_RULES: tuple[Page, ...] = (
    (
        "# 电气安全规程",
        "# 第一章  总则",
        "第一条  为防止触电和电气火灾事故，制定本规程。本规程适用于公司所有车间和外来施工单位。",
        "第二条  电气作业人员必须持有有效的特种作业操作证。操作证每三年复审一次。",
        "第三条  电气作业至少由两人进行，其中一人负责监护。监护人不得从事其他工作。",
    ),
    (
        "# 第二章  停电作业",
        "第四条  停电作业按下列顺序进行：停电、验电、装设接地线、悬挂标示牌。",
        "第五条  验电应使用电压等级相符且在有效期内的验电器。验电前，先在有电设备上试验，确认验电器良好。",
        "第六条  装设接地线时，先接接地端，后接导体端；拆除时顺序相反。接地线截面积不得小于 25 mm²。",
        "第七条  变频器断电后，至少等待 10 分钟，并测量直流母线电压低于 36 V，方可打开柜门内的防护罩。",
    ),
    (
        "# 第三章  用电设备",
        "第八条  手持电动工具必须装设剩余电流动作保护器，额定剩余动作电流不大于 30 mA，动作时间不大于 0.1 s。",
        "第九条  金属容器内的照明使用 12 V 安全电压。",
        "第十条  配电箱前 0.8 m 之内不得堆放物品。配电箱每月检查一次，检查结果记入附表。",
        (
            ("设备", "绝缘电阻最低值", "测量周期"),
            ("低压电动机", "0.5 MΩ", "六个月"),
            ("Ⅰ类手持工具", "2 MΩ", "三个月"),
            ("Ⅱ类手持工具", "7 MΩ", "三个月"),
            ("电焊机", "2.5 MΩ", "六个月"),
        ),
    ),
)

MANUAL_FILE = "HX-200-manual.pdf"
POLICY_FILE = "lockout-policy.pdf"
ELECTRICAL_RULES_FILE = "电气安全规程.pdf"

# query, language, file and 0-based page (none: no document answers it), kind, answer
QUESTIONS: tuple[tuple[str, str, tuple[str, int] | None, str, str], ...] = (
    ("How powerful is the main motor of the HX-200?", "en", (MANUAL_FILE, 3), "table", "1.5 kW"),
    ("HX-200 的锯带规格是多少？", "zh", (MANUAL_FILE, 3), "table", "2460 × 27 × 0.9"),
    ("How far apart are the foundation bolts of the band saw?", "en", (MANUAL_FILE, 4), "figure", "1140"),
    ("带锯床电源侧应装多大的断路器？", "zh", (MANUAL_FILE, 5), "text", "16 A"),
    ("新机床运行多少小时后第一次更换液压油？", "zh", (MANUAL_FILE, 7), "text", "300 小时"),
    ("tightening torque of the drive wheel hub", "en", (MANUAL_FILE, 8), "table", "195"),
    ("机床显示 E07 时应当怎么办？", "zh", (MANUAL_FILE, 9), "table", "清洁风扇 F2 的滤网"),
    ("Which wheel run-out was measured at the acceptance test?", "en", (MANUAL_FILE, 11), "scan", "0.06 mm"),
    ("出厂验收时测得的空载噪声是多少？", "zh", (MANUAL_FILE, 11), "scan", "74 dB(A)"),
    (
        "A colleague went home and left his padlock on the press; who is allowed to take it off?",
        "en",
        (POLICY_FILE, 1),
        "paraphrase",
        "shift supervisor",
    ),
    ("How long is the lockout register kept?", "en", (POLICY_FILE, 2), "text", "five years"),
    ("装设接地线时应先接哪一端？", "zh", (ELECTRICAL_RULES_FILE, 1), "text", "先接接地端"),
    ("电焊机的绝缘电阻最低是多少？", "zh", (ELECTRICAL_RULES_FILE, 2), "table", "2.5 MΩ"),
    ("How long is the warranty of the HX-200?", "en", None, "no-answer", ""),
    ("HX-200 带锯床的售价是多少？", "zh", None, "no-answer", ""),
)
