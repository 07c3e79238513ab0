module uart_rx_to_axis #(
    parameter CLK_FREQ = 100,
    parameter BIT_RATE = 115200,
    parameter BIT_PER_WORD = 8,
    parameter PARITY_BIT = 0,
    parameter STOP_BITS_NUM = 1
) (
    input  logic                    aclk,
    input  logic                    aresetn,
    input  logic                    RX,
    output logic [BIT_PER_WORD-1:0] tdata,
    output logic                    tuser,
    output logic                    tvalid
);
    localparam Cycle_per_Period = CLK_FREQ * 1_000_000 / BIT_RATE;
    localparam [2:0] IDLE = 0, START = 1, DATA = 2, PARITY = 3, STOP1 = 4, STOP2 = 5, OUT_RDY = 6;

    logic [2:0]                            state;
    logic [$clog2(Cycle_per_Period+1)-1:0] Clk_Count;
    logic [$clog2(BIT_PER_WORD+1)-1:0]     Bit_Count;
    logic [BIT_PER_WORD-1:0]               Data_Shift_Reg;
    logic                                  previous, wrong;

    // The middle of the start bit is half a period away, that of each bit behind it a whole one.
    wire over = Clk_Count == (state == START ? Cycle_per_Period / 2 : Cycle_per_Period) - 1;

    always_ff @(posedge aclk or negedge aresetn)
        if (!aresetn) begin
            state <= IDLE;
            previous <= 1;
            {Clk_Count, Bit_Count, Data_Shift_Reg, wrong, tdata, tuser, tvalid} <= 0;
        end else begin
            previous <= RX;
            tvalid <= 0;
            Clk_Count <= state == IDLE || over ? 0 : Clk_Count + 1;
            case (state)
                IDLE: begin
                    {Bit_Count, wrong} <= 0;
                    if (previous && !RX) state <= START;
                end
                START: if (over) state <= RX ? IDLE : DATA;
                DATA:
                    if (over) begin
                        Data_Shift_Reg <= {RX, Data_Shift_Reg} >> 1;
                        Bit_Count <= Bit_Count + 1;
                        if (Bit_Count == BIT_PER_WORD - 1) state <= PARITY_BIT ? PARITY : STOP1;
                    end
                PARITY:
                    if (over) begin
                        wrong <= RX != (^Data_Shift_Reg ^ (PARITY_BIT == 1));
                        state <= STOP1;
                    end
                STOP1: if (over) state <= !RX ? IDLE : STOP_BITS_NUM == 2 ? STOP2 : OUT_RDY;
                STOP2: if (over) state <= RX ? OUT_RDY : IDLE;
                default: begin
                    tdata <= Data_Shift_Reg;
                    tuser <= wrong;
                    tvalid <= 1;
                    state <= IDLE;
                end
            endcase
        end
endmodule
