module csr_apb_interface (
    input  logic        pclk,
    input  logic        presetn,
    input  logic [31:0] paddr,
    input  logic        pselx,
    input  logic        penable,
    input  logic        pwrite,
    input  logic [31:0] pwdata,
    output logic        pready,
    output logic [31:0] prdata,
    output logic        pslverr,
    output logic [1:0]  state
);
    localparam [1:0] IDLE = 0, SETUP = 1, READ_STATE = 2, WRITE_STATE = 3;
    localparam [31:0] DATA_REG = 32'h10, CONTROL_REG = 32'h14, INTERRUPT_REG = 32'h18, ISR_REG = 32'h1c;

    logic [31:0] data, control, interrupts, flags;

    always_ff @(posedge pclk or negedge presetn)
        if (!presetn) begin
            state <= IDLE;
            {data, control, interrupts, flags, prdata, pslverr, pready} <= 0;
        end else begin
            pready <= 0;
            case (state)
                IDLE: begin
                    pslverr <= 0;
                    if (pselx) state <= SETUP;
                end
                SETUP: if (penable) state <= pwrite ? WRITE_STATE : READ_STATE;
                READ_STATE: begin
                    pready <= 1;
                    state <= IDLE;
                    case (paddr)
                        DATA_REG: prdata <= data;
                        CONTROL_REG: prdata <= control;
                        INTERRUPT_REG: prdata <= interrupts;
                        ISR_REG: prdata <= flags;
                        default: pslverr <= 1;
                    endcase
                end
                default: begin
                    pready <= 1;
                    state <= IDLE;
                    case (paddr)
                        DATA_REG: data <= pwdata;
                        CONTROL_REG: control <= pwdata;
                        INTERRUPT_REG: begin
                            interrupts <= pwdata;
                            flags <= flags & ~pwdata;
                        end
                        default: pslverr <= 1;
                    endcase
                end
            endcase
        end
endmodule
