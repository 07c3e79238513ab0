module axis_to_uart_tx #(
    parameter CLK_FREQ = 100,
    parameter BIT_RATE = 115200,
    parameter BIT_PER_WORD = 8,
    parameter PARITY_BIT = 0,
    parameter STOP_BITS_NUM = 1
) (
    input  logic                    aclk,
    input  logic                    aresetn,
    input  logic [BIT_PER_WORD-1:0] tdata,
    input  logic                    tvalid,
    output logic                    tready,
    output logic                    TX
);
    localparam Cycle_per_Period = CLK_FREQ * 1_000_000 / BIT_RATE;
    localparam [2:0] IDLE = 0, START = 1, DATA = 2, PARITY = 3, STOP1 = 4, STOP2 = 5;

    logic [2:0]                            state;
    logic [$clog2(Cycle_per_Period+1)-1:0] Clk_Count;
    logic [$clog2(BIT_PER_WORD+1)-1:0]     Bit_Count;
    logic [BIT_PER_WORD-1:0]               Data;

    wire Clk_Count_Done = Clk_Count == Cycle_per_Period - 1;
    wire Bit_Count_Done = Bit_Count == BIT_PER_WORD - 1;
    wire parity = ^Data ^ (PARITY_BIT == 1);

    assign tready = state == IDLE;

    always_ff @(posedge aclk or negedge aresetn)
        if (!aresetn) begin
            state <= IDLE;
            {Clk_Count, Bit_Count, Data} <= '0;
            TX <= 1;
        end else begin
            Clk_Count <= state == IDLE || Clk_Count_Done ? '0 : Clk_Count + 1;
            case (state)
                IDLE: begin
                    Bit_Count <= '0;
                    if (tvalid) begin
                        Data <= tdata;
                        state <= START;
                    end
                end
                START: if (Clk_Count_Done) state <= DATA;
                DATA:
                    if (Clk_Count_Done) begin
                        Bit_Count <= Bit_Count + 1;
                        // Going round, the word is whole again when its parity is sent.
                        Data <= {Data, Data} >> 1;
                        if (Bit_Count_Done) state <= PARITY_BIT == 0 ? STOP1 : PARITY;
                    end
                PARITY: if (Clk_Count_Done) state <= STOP1;
                STOP1: if (Clk_Count_Done) state <= STOP_BITS_NUM == 2 ? STOP2 : IDLE;
                STOP2: if (Clk_Count_Done) state <= IDLE;
                default: state <= IDLE;
            endcase
            case (state)
                START: TX <= 0;
                DATA: TX <= Data[0];
                PARITY: TX <= parity;
                default: TX <= 1;
            endcase
        end
endmodule
